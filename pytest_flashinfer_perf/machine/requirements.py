"""What the installed FlashInfer requires, by its own metadata, and what of that is missing or too old.

It imports nothing of this package: the Python of another environment runs its text to answer for that environment.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = "flashinfer-python"
TORCH = "torch"  # not looked into: whoever installed it knows its CUDA
OF_A_CUDA = re.compile(r"-cu(1\d)$")


class Unmet(NamedTuple):
    """A requirement that is not met: the package, the requirement as pip takes it, and why it is not met."""

    name: str
    requirement: str
    why: str

    @property
    def sentence(self) -> str:
        return f"{self.name} {self.why}"


def version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def versions() -> dict[str, str | None]:
    """The versions of what FlashInfer itself requires, None for what is not installed."""
    return {name: version(name) for name in sorted({one.name for one in _required(PROJECT, frozenset())})}


@functools.cache
def unmet() -> tuple[Unmet, ...]:
    """What FlashInfer requires and does not have, nor what those packages require in turn."""
    by_name = {one.name: Unmet(one.name, str(one).partition(";")[0].strip(), why) for one, why in _faults()}
    return tuple(by_name[name] for name in sorted(by_name))


def _faults() -> Iterator[tuple[Requirement, str]]:
    for one in _all_required():
        here = version(one.name)
        if here is None and not _has_another_cuda(one):
            yield one, "is not installed"
        elif here is not None and not one.specifier.contains(here, prereleases=True):
            yield one, f"is {here}, {one.specifier} is required"


def _has_another_cuda(one: Requirement) -> bool:
    """Whether another CUDA's build of the same library is installed: FlashInfer runs on one CUDA, not on all."""
    others = (OF_A_CUDA.sub(f"-cu{major}", one.name) for major in range(12, 20) if OF_A_CUDA.search(one.name))
    return any(one.specifier.contains(here, prereleases=True) for name in others if (here := version(name)))


def _all_required() -> Iterator[Requirement]:
    waiting, visited = [(PROJECT, frozenset[str]())], set()
    while waiting:
        project = waiting.pop(0)
        if project in visited:
            continue
        visited.add(project)
        for one in _required(*project):
            yield one
            if one.name != TORCH:
                waiting.append((one.name, frozenset(one.extras)))


def _required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    """The requirements of an installed package with these extras, as far as they apply to this machine."""
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return
    for one in map(Requirement, lines):
        one.name = canonicalize_name(one.name)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield one


if __name__ == "__main__":
    print(json.dumps(unmet()))  # noqa: T201 - the answer
