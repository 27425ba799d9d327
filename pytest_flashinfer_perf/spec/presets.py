"""Presets: a model's name and how it is spread over GPUs give the shapes of its layers on one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pytest_flashinfer_perf.spec.params import ParamError


class Spread(NamedTuple):
    """GPUs that share each layer, groups of them that share a model's requests, GPUs that share its experts."""

    tp: int = 1
    dp: int = 1
    ep: int = 1


@dataclass(frozen=True)
class Model:
    """A model's name, the parameters that it settles on one GPU, and how many groups of GPUs share its requests."""

    name: str
    settles: Mapping[str, Any]
    dp: int = 1

    def batches(self, *whole: int) -> Iterator[int]:
        """What one group gets of each batch."""
        return iter(dict.fromkeys(max(1, batch // self.dp) for batch in whole))


class Layer(Protocol):
    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        """How many of what so many GPUs share evenly."""
        ...


L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Presets(Generic[L]):
    """The models that have a kind of layer; called with a name, the parameters that it settles on one GPU."""

    layers: Mapping[str, L]
    settles: Callable[[L, Spread], dict[str, Any]]
    usual: tuple[Spread, ...] = tuple(Spread(tp) for tp in (1, 2, 4, 8))

    def __call__(self, name: str, tp: int = 1, dp: int = 1, ep: int = 1) -> Model:
        over = Spread(tp, dp, ep)
        for count, what, gpus in self._uneven(name, over):
            raise ParamError(f"{name} has {count} {what}, which {gpus} GPUs cannot share evenly")
        spread = "".join(f"-{way}{gpus}" for way, gpus in over._asdict().items() if gpus > 1)
        return Model(name + spread, self.settles(self.layers[name], over), dp)

    def _uneven(self, name: str, over: Spread) -> list[tuple[int, str, int]]:
        return [(count, what, gpus) for count, what, gpus in self.layers[name].shared(over) if count % gpus]

    def everywhere(self) -> Iterator[Model]:
        """Each model on each usual number of GPUs."""
        yield from (self(name, *over) for name in self.layers for over in self.usual if not self._uneven(name, over))
