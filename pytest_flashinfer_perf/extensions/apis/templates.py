"""The data that is stored about FlashInfer's templates, so that FlashInfer need not be imported."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from pytest_flashinfer_perf.api import FlashinferPerfError, fields, file_io, formatting, processes, requirements


@dataclass(frozen=True)
class Axis:
    """What the template's `init` takes, mostly a number; it has to be given where there is no default."""

    name: str
    default: Any  # a number, or None
    help: str = ""
    short: str = ""


@dataclass(frozen=True)
class Declared:
    """A tensor or number that a template declares: the argument that holds it, and the axes of its shape."""

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


# List the templates of the installed FlashInfer, in a child process once per version.

FORMAT = 4
PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from pytest_flashinfer_perf.extensions.apis import registry; registry.main()"
)
NOTHING = Registry("", (), {})


class DiscoveryError(FlashinferPerfError):
    """FlashInfer's templates cannot be listed; the sentence has the error of its import."""


@functools.cache
def installed() -> Registry:
    """All templates; empty if FlashInfer is not installed."""
    package = importlib.util.find_spec("flashinfer")
    if package is None or package.origin is None:
        return NOTHING
    kept = _kept_at(Path(package.origin))
    try:
        return fields.read(Registry, json.loads(kept.read_text(encoding="utf-8")), "templates")
    except (OSError, ValueError, fields.FieldError):
        return _listed_by_child(kept)


def _kept_at(origin: Path) -> Path:
    """The cache file, by FlashInfer's version and place, the packages that it can import, and our own templates."""
    ours = [Path(__file__).with_name(name) for name in ("special_cases.py", "by_hand.py")]
    packages = (requirements.PROJECT, "torch", "nvidia-cutlass-dsl", "triton")
    stated = [
        str(FORMAT),
        str(origin),
        str(origin.stat().st_mtime_ns),
        *(str(requirements.version(one)) for one in packages),
    ]
    stated += [f"{path.name} {path.stat().st_mtime_ns}" for path in ours]
    name = f"{requirements.version(packages[0])}-{hashlib.sha256(' '.join(stated).encode()).hexdigest()[:12]}.json"
    return platformdirs.user_cache_path("pytest-flashinfer-perf") / "apis" / name


def _listed_by_child(kept: Path) -> Registry:
    package = str(Path(__file__).parents[3])
    try:
        answer = processes.answer(PROGRAM, package, *sys.path)
    except processes.NoAnswerError as error:
        raise DiscoveryError(f"FlashInfer's trace templates cannot be listed: {error}") from error
    registry = fields.read(Registry, json.loads(answer), "templates")
    file_io.write_whole(kept, answer)
    return registry


# The output of `flashinfer-perf list --api`: all templates of the installed FlashInfer, by family.


def lines(registry: Registry, part: str = "") -> Iterator[str]:
    matching = [api for api in registry.apis if part.lower() in api.name.lower()]
    for family, members in itertools.groupby(
        sorted(matching, key=lambda api: (api.family, api.name)), lambda api: api.family
    ):
        each = list(members)
        usable = [api for api in each if not api.missing]
        yield f"{family} ({len(usable)} of {len(each)} templates can be measured)"
        for api in each:
            yield from _listed_api(api)
        yield ""
    usable = [api for api in matching if not api.missing]
    yield f"FlashInfer {registry.version}: {len(usable)} of {len(matching)} templates can be measured"
    for module, reason in registry.failed.items():
        yield from formatting.wrapped(f"  cannot be imported: {module}: {reason}", 12)


def _listed_api(api: Api) -> Iterator[str]:
    yield f"  {api.name}"
    if api.missing:
        yield from formatting.wrapped(f"    {api.missing}", 14)
        return
    yield from formatting.wrapped(f"    backends  {' '.join((*api.backends, 'torch'))}", 14)
    flags = (f"--{axis.name}" if axis.default is None else f"--{axis.name}={axis.default}" for axis in api.axes)
    yield from formatting.wrapped(f"    flags     {' '.join(flags)}", 14)
