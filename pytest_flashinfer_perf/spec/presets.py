"""Presets: from a model's name and its distribution over GPUs to the shapes of its layers on one GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from pytest_flashinfer_perf.spec.params import ParamError


class Spread(NamedTuple):
    """The numbers of GPUs that share each layer, of groups that share requests, of GPUs that share experts."""

    tp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def suffix(self) -> str:
        """The end of a model's name, such as `-tp8-dp2`."""
        return "".join(f"-{way}{gpus}" for way, gpus in self._asdict().items() if gpus > 1)


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
        """The batches of one group: each batch divided by the number of groups."""
        return iter(dict.fromkeys(max(1, batch // self.dp) for batch in whole))


class UnevenError(ParamError):
    """Something of a layer that so many GPUs cannot share evenly."""


def shared(count: int, gpus: int, what: str) -> int:
    """A GPU's part of what must divide evenly."""
    if count % gpus:
        raise UnevenError(f"{count} {what}, which {gpus} GPUs cannot share evenly")
    return count // gpus


L = TypeVar("L")


@dataclass(frozen=True)
class Presets(Generic[L]):
    """The models that have a kind of layer. Call it with a model's name to get that model on one GPU."""

    layers: Mapping[str, L]
    parameters: Callable[[L, Spread], dict[str, Any]]
    usual: tuple[Spread, ...] = tuple(Spread(tp) for tp in (1, 2, 4, 8))

    def __call__(self, name: str, tp: int = 1, dp: int = 1, ep: int = 1) -> Model:
        over = Spread(tp, dp, ep)
        try:
            return Model(name + over.suffix, self.parameters(self.layers[name], over), dp)
        except UnevenError as error:
            raise UnevenError(f"{name} has {error}") from error

    def everywhere(self) -> Iterator[Model]:
        """Each model on each usual number of GPUs that divides it evenly."""
        for name in self.layers:
            for over in self.usual:
                with suppress(UnevenError):
                    yield self(name, *over)
