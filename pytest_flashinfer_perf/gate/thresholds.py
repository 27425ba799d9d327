"""`[thresholds]` of the settings file, and sections like it: how much slower is too slow, and other limits.

A section is read by globs, with the limits that a dataclass declares; `broken` then names each limit of the gate's own
that a case does not keep. Extensions declare more limits, and sections of their own.
"""

from __future__ import annotations

import fnmatch
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_type_hints

from pytest_flashinfer_perf.gate.match import ComparedCase
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFile, ProjectFileError

EXAMPLE = '"attention/decode*" = { slower = "2%", floor_us = 0.5 }'
PERCENT = re.compile(r"(\d+(?:\.\d+)?) *%")

T = TypeVar("T")
Reader = Callable[[Any, str], Any]  # of a value, and where it stands


def share(value: Any, where: str) -> float:
    """Read a share with its % sign, so that 2 and 0.02 cannot be taken for each other."""
    percent = PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if percent is None or float(percent[1]) == 0:
        raise ProjectFileError(f'{where}: must be a percentage above zero, as in "2%", got {value!r}')
    return float(percent[1]) / 100


def number(value: Any, where: str) -> float:
    return project_file.number(value, f"{where}:")


def switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ProjectFileError(f"{where}: must be true or false, got {value!r}")
    return value


@dataclass(frozen=True)
class Threshold:
    """The limits of one case: a change counts if it exceeds both `slower`, a share of the time, and `floor_us`.

    Each is annotated with the function that reads its value from the settings file. `others` are those that extensions
    declare.
    """

    slower: Annotated[float, share] = 0.02
    floor_us: Annotated[float, number] = 0.1
    min_tflops: Annotated[float | None, number] = None
    min_sol_pct: Annotated[float | None, number] = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def in_log(self, median: float) -> float:
        """The least logarithm of a ratio that counts, of a case that takes `median` seconds."""
        return math.log1p(max(self.slower, self.floor_us * 1e-6 / median))

    def of(self, kind: type[T]) -> T:
        """The limits that an extension declares by this dataclass."""
        return _limits_by(kind, self.others)


@dataclass(frozen=True)
class Globs:
    """The globs of a section in the file's order; a later one that also fits wins, field by field."""

    entries: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def limits(self, names: Sequence[str]) -> dict[str, Any]:
        """The limits that are set for what has these names."""
        return {name: value for glob, entry in self.entries if _fits(glob, names) for name, value in entry.items()}

    def of_kind(self, kind: type[T], name: str) -> T:
        """The limits that this dataclass declares, for what has this name."""
        return _limits_by(kind, self.limits([name]))

    def without_match(self, names: Sequence[str]) -> list[str]:
        """Globs that fit none of these names: mistyped, or not of this run."""
        return [glob for glob, _ in self.entries if not _fits(glob, names)]


@dataclass(frozen=True)
class Thresholds(Globs):
    def of(self, row: Row) -> Threshold:
        return self.named(glob_names(row))

    def named(self, names: Sequence[str]) -> Threshold:
        limits_of_names = self.limits(names)
        others = {name: value for name, value in limits_of_names.items() if name not in OWN}
        return Threshold(**{name: value for name, value in limits_of_names.items() if name in OWN}, others=others)

    def idle(self, rows: Iterable[Row]) -> list[str]:
        return self.without_match([name for row in rows for name in glob_names(row)])


def glob_names(row: Row) -> tuple[str, ...]:
    return names_of_case(row.case, row.identity.family, row.name, row.fullname)


def names_of_case(case: str, family: str | None, test: str, test_id: str) -> tuple[str, ...]:
    """The names by which a glob of the settings file can select a case, of a test with this name and id."""
    short = test.removeprefix("test_").replace("[", "/", 1).removesuffix("]")
    return (case, *((f"{family}/{case}", f"{family}/{short}") if family else ()), test_id)


def _fits(glob: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in names)


def _limits_by(kind: type[T], limits: Mapping[str, Any]) -> T:
    dataclass_type: Any = kind
    return kind(**{one.name: limits[one.name] for one in fields(dataclass_type) if one.name in limits})


def readers(kind: type) -> dict[str, Reader]:
    """The reader of each limit that a dataclass declares, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


OWN = readers(Threshold)


def read(project: ProjectFile, declared: Iterable[type] = ()) -> Thresholds:
    """`[thresholds]`, with the limits that these dataclasses declare beside the gate's own."""
    return Thresholds(tuple(entries(project, "thresholds", (Threshold, *declared))))


def entries(project: ProjectFile, section: str, declared: Iterable[type]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The globs of a section with their limits, read as they are declared."""
    by_name = {name: reader for kind in declared for name, reader in readers(kind).items()}
    for glob, entry in project.section(section, by_name).items():
        where = project.where(section, glob)
        yield glob, {name: by_name[name](value, f"{where}: {name}") for name, value in entry.items()}


# Limits without a baseline: rates to reach.


@dataclass(frozen=True)
class Broken:
    """A limit that is exceeded or not reached; `unknown` if the rows lack the number to compare."""

    sentence: str
    unknown: bool = False


def broken(case: ComparedCase, limits: Threshold) -> Iterator[Broken]:
    for name in ("tflops", "sol_pct"):
        least = getattr(limits, f"min_{name}")
        reached = [getattr(row.throughput, name) for row in case.after]
        values = [float(value) for value in reached if value is not None]
        if least is None:
            continue
        if len(values) < len(reached):
            yield Broken(f"min_{name} = {least:g}: its rows have no {name}", unknown=True)
        elif statistics.median(values) < least:
            yield Broken(f"min_{name} = {least:g}: it reaches {statistics.median(values):.4g}")
