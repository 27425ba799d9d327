"""Presets: from a model's name and its distribution over GPUs to the shapes of its layers on one GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pytest_flashinfer_perf.spec.params import ParamError


class Spread(NamedTuple):
    """The numbers of GPUs that share each layer, of groups that share requests, of GPUs that share experts."""

    tp: int = 1
    dp: int = 1
    ep: int = 1


def split_name(text: str) -> tuple[str, dict[str, int]]:
    """`llama-3.1-70b-tp8-dp2`, the name of a model as ids have it, to `llama-3.1-70b` and {"tp": 8, "dp": 2}."""
    name, spread = re.fullmatch(r"(.*?)((?:-(?:tp|dp|ep)[1-9]\d*)*)", text).groups()  # type: ignore[union-attr] # any
    return name, {way: int(gpus) for way, gpus in re.findall(r"-(\w\w)(\d+)", spread)}


@dataclass(frozen=True)
class Model:
    """A model's name, the parameters that it sets on one GPU, and how many groups of GPUs share its requests."""

    name: str
    parameters: Mapping[str, Any]
    dp: int = 1

    def batches(self, *whole: int) -> Iterator[int]:
        """Each batch divided by the number of groups."""
        return iter(dict.fromkeys(max(1, batch // self.dp) for batch in whole))


class Layer(Protocol):
    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        """The counts that must divide evenly, as (count, what is counted, number of GPUs)."""
        ...


L = TypeVar("L", bound=Layer)


@dataclass(frozen=True)
class Presets(Generic[L]):
    """The models that have a kind of layer. Call it with a model's name to get that model on one GPU."""

    layers: Mapping[str, L]
    parameters: Callable[[L, Spread], dict[str, Any]]
    usual: tuple[Spread, ...] = tuple(Spread(tp) for tp in (1, 2, 4, 8))

    def __call__(self, name: str, tp: int = 1, dp: int = 1, ep: int = 1) -> Model:
        over = Spread(tp, dp, ep)
        for count, what, gpus in self._uneven(name, over):
            raise ParamError(f"{name} has {count} {what}, which {gpus} GPUs cannot share evenly")
        spread = "".join(f"-{way}{gpus}" for way, gpus in over._asdict().items() if gpus > 1)
        return Model(name + spread, self.parameters(self.layers[name], over), dp)

    def _uneven(self, name: str, over: Spread) -> list[tuple[int, str, int]]:
        return [(count, what, gpus) for count, what, gpus in self.layers[name].shared(over) if count % gpus]

    def everywhere(self) -> Iterator[Model]:
        """Each model on each usual number of GPUs that divides it evenly."""
        yield from (self(name, *over) for name in self.layers for over in self.usual if not self._uneven(name, over))
