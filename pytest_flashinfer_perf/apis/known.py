"""The data that is stored about FlashInfer's templates, so that FlashInfer need not be imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

PART, WHAT_LACKED = "in part", "what it lacked"  # without the latter it could not be measured
Default = int | float | str | bool | None


@dataclass(frozen=True)
class Axis:
    """What the template's `init` takes, mostly a number; it has to be given where there is no default."""

    name: str
    default: Default
    help: str = ""
    short: str = ""
    choices: tuple[str, ...] = ()
    least: int = 1


@dataclass(frozen=True)
class Declared:
    """A tensor or a number, in a template's words: the argument it is, or is written to, and the axes of its shape."""

    name: str
    argument: str
    dims: tuple[str, ...] = ()
    dtype: str = ""
    optional: bool = False
    element: int | None = None  # of a tuple


@dataclass(frozen=True)
class Api:
    """One FlashInfer API with one of its templates."""

    path: str
    label: str
    family: str
    operation: str
    axes: tuple[Axis, ...] = ()
    unused: tuple[str, ...] = ()  # what `init` must be given and does not look at
    inputs: tuple[Declared, ...] = ()
    outputs: tuple[Declared, ...] = ()
    backends: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    templates: int = 1
    missing: str = ""
    by_hand: str = ""  # how much of the template is this project's: nothing, PART, or WHAT_LACKED

    @property
    def name(self) -> str:
        """The API's path, with the template's own name if the API has several templates."""
        return self.path if self.templates == 1 else f"{self.path}:{self.label}"

    @property
    def below(self) -> str:
        """The path below `flashinfer`, of the function or the wrapper class."""
        path = self.path.removeprefix("flashinfer.")
        owner, _, method = path.rpartition(".")
        return owner if owner.rpartition(".")[2][:1].isupper() and method else path


@dataclass(frozen=True)
class Registry:
    """All templates of one FlashInfer, and its modules that could not be imported."""

    version: str
    apis: tuple[Api, ...]
    failed: Mapping[str, str]

    @property
    def usable(self) -> tuple[Api, ...]:
        return tuple(api for api in self.apis if not api.missing)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def from_json(read: Mapping[str, Any]) -> Registry:
    return Registry(read["version"], tuple(map(_api, read["apis"])), read["failed"])


def _api(read: Mapping[str, Any]) -> Api:
    made = {
        "axes": tuple(Axis(**{**axis, "choices": tuple(axis["choices"])}) for axis in read["axes"]),
        "inputs": _declared(read["inputs"]),
        "outputs": _declared(read["outputs"]),
        "unused": tuple(read["unused"]),
        "backends": tuple(read["backends"]),
        "arguments": tuple(read["arguments"]),
    }
    return Api(**{**read, **made})


def _declared(read: Iterable[Mapping[str, Any]]) -> tuple[Declared, ...]:
    return tuple(Declared(**{**one, "dims": tuple(one["dims"])}) for one in read)
