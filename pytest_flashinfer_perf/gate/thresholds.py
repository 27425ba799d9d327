"""`[thresholds]`, `[models]` and `[traffic]` of the settings file: how much slower is too slow, and other limits.

First the sections are read, by globs of cases; `broken` then names each limit that a case does not keep.
"""

from __future__ import annotations

import fnmatch
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_type_hints

from pytest_flashinfer_perf.extensions.host.host_time import SYNCHRONISATION, HostTime, places
from pytest_flashinfer_perf.extensions.models.verdicts import StepLimits, TrafficLimits
from pytest_flashinfer_perf.gate import effects
from pytest_flashinfer_perf.gate.effects import Replicates
from pytest_flashinfer_perf.gate.match import ComparedCase
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFile, ProjectFileError

EXAMPLE = '"attention/decode*" = { slower = "2%", floor_us = 0.5 }'
PERCENT = re.compile(r"(\d+(?:\.\d+)?) *%")

Reader = Callable[[Any, str], Any]  # of a value, and where it stands


@dataclass(frozen=True)
class Rival:
    """Another backend of the same shape, and how many times its time this one may take."""

    backend: str
    ratio: float = 1.0


def share(value: Any, where: str) -> float:
    """With its sign, so that 2 and 0.02 cannot be taken for each other."""
    percent = PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if percent is None or float(percent[1]) == 0:
        raise ProjectFileError(f'{where}: must be a percentage above zero, as in "2%", got {value!r}')
    return float(percent[1]) / 100


def number(value: Any, where: str) -> float:
    return project_file.number(value, f"{where}:")


def _switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ProjectFileError(f"{where}: must be true or false, got {value!r}")
    return value


def _rival(value: Any, where: str) -> Rival:
    if not isinstance(value, dict) or not isinstance(value.get("backend"), str) or set(value) - {"backend", "ratio"}:
        raise ProjectFileError(f'{where}: must be {{ backend = "fa2", ratio = 1.0 }}, got {value!r}')
    return Rival(value["backend"], number(value.get("ratio", 1.0), f"{where}.ratio"))


@dataclass(frozen=True)
class Threshold:
    """The limits of one case: a change counts if it exceeds both `slower`, a share of the time, and `floor_us`.

    Each is annotated with the function that reads its value from the settings file.
    Host time has no limit unless the settings file sets one.
    """

    slower: Annotated[float, share] = 0.02
    floor_us: Annotated[float, number] = 0.1
    min_tflops: Annotated[float | None, number] = None
    min_sol_pct: Annotated[float | None, number] = None
    max_vs_backend: Annotated[Rival | None, _rival] = None
    same_library: Annotated[bool, _switch] = False
    slower_host: Annotated[float | None, share] = None
    max_host_us: Annotated[float | None, number] = None
    max_plan_us: Annotated[float | None, number] = None
    max_launches: Annotated[float | None, number] = None
    no_sync: Annotated[bool, _switch] = False
    max_regret: Annotated[float | None, share] = None  # of the tuner's choices, which `tune-report` judges
    max_flips: Annotated[float | None, number] = None

    def in_log(self, median: float) -> float:
        """The least logarithm of a ratio that counts, of a case that takes `median` seconds."""
        return math.log1p(max(self.slower, self.floor_us * 1e-6 / median))


@dataclass(frozen=True)
class Globs:
    """The globs of a section in the file's order; a later one that also fits wins, field by field."""

    entries: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """Those that are set for what has these names."""
        return {name: value for glob, entry in self.entries if _fits(glob, names) for name, value in entry.items()}

    def without_match(self, names: Sequence[str]) -> list[str]:
        """Globs that fit none of these names: mistyped, or not of this run."""
        return [glob for glob, _ in self.entries if not _fits(glob, names)]


@dataclass(frozen=True)
class Thresholds(Globs):
    def of(self, row: Row) -> Threshold:
        return self.named(glob_names(row))

    def named(self, names: Sequence[str]) -> Threshold:
        return replace(Threshold(), **self.fields(names))

    def idle(self, rows: Iterable[Row]) -> list[str]:
        return self.without_match([name for row in rows for name in glob_names(row)])


@dataclass(frozen=True)
class StepThresholds(Globs):
    """Globs of models' names."""

    def of(self, model: str) -> StepLimits:
        return replace(StepLimits(), **self.fields([model]))


@dataclass(frozen=True)
class TrafficThresholds(Globs):
    """Globs of the names of APIs, and `sum` for the whole of a recording."""

    def of(self, name: str) -> TrafficLimits:
        return replace(TrafficLimits(), **self.fields([name]))


def glob_names(row: Row) -> tuple[str, ...]:
    return names_of_case(row.case, row.identity.family, row.name, row.fullname)


def names_of_case(case: str, family: str | None, test: str, test_id: str) -> tuple[str, ...]:
    """The names by which a glob of the settings file can select a case, of a test with this name and id."""
    short = test.removeprefix("test_").replace("[", "/", 1).removesuffix("]")
    return (case, *((f"{family}/{case}", f"{family}/{short}") if family else ()), test_id)


def _fits(glob: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in names)


def read(project: ProjectFile) -> Thresholds:
    hints = get_type_hints(Threshold, include_extras=True)
    readers = {name: hint.__metadata__[0] for name, hint in hints.items()}
    return Thresholds(tuple(entries(project, "thresholds", readers)))


def of_steps(project: ProjectFile) -> StepThresholds:
    return StepThresholds(tuple(entries(project, "models", OF_STEPS)))


def of_traffic(project: ProjectFile) -> TrafficThresholds:
    return TrafficThresholds(tuple(entries(project, "traffic", OF_TRAFFIC)))


def entries(project: ProjectFile, section: str, readers: Mapping[str, Reader]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each glob of a section with its fields, read by the reader of each."""
    for glob, entry in project.section(section, readers).items():
        where = project.where(section, glob)
        yield glob, {name: readers[name](value, f"{where}: {name}") for name, value in entry.items()}


OF_STEPS = {"slower_step": share, "max_step_us": number}
OF_TRAFFIC = {"slower": share, "max_ms_per_s": number}


# Limits without a baseline: rates to reach, a limit relative to another backend, limits of host time.

NOT_WRITTEN = "its rows do not say what it asks of the host"


@dataclass(frozen=True)
class Broken:
    """A limit that is exceeded or not reached; `unknown` if the rows lack the number to compare."""

    sentence: str
    unknown: bool = False


def broken(case: ComparedCase, asked: Threshold) -> list[Broken]:
    if not case.head:
        return []
    rival = _row_of_rival(case, asked.max_vs_backend) if asked.max_vs_backend else ()
    return [*_rates(case, asked), *rival, *_host(case, asked)]


def _rates(case: ComparedCase, asked: Threshold) -> Iterator[Broken]:
    for field in ("tflops", "sol_pct"):
        least = getattr(asked, f"min_{field}")
        reached = [getattr(row.throughput, field) for row in case.after]
        known = [float(value) for value in reached if value is not None]
        if least is None:
            continue
        if len(known) < len(reached):
            yield Broken(f"min_{field} = {least:g}: its rows have no {field}", unknown=True)
        elif statistics.median(known) < least:
            yield Broken(f"min_{field} = {least:g}: it reaches {statistics.median(known):.4g}")


def _host(case: ComparedCase, asked: Threshold) -> Iterator[Broken]:
    hosts = [row.host for row in case.after]
    for field in ("host_us", "plan_us", "launches"):
        most = getattr(asked, f"max_{field}")
        if most is not None:
            yield from _at_most(field, most, hosts)
    if asked.no_sync:
        yield from _never_waits(hosts)
    if asked.slower_host is not None:
        yield from _comparable([row.host for row in case.rows])


def _at_most(field: str, most: float, hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    """A case for which nothing is planned breaks no limit of plans."""
    seen = [getattr(host, field) for host in hosts if host]
    known = [value for value in seen if value is not None]
    if len(seen) < len(hosts) or (len(known) < len(seen) and field != "plan_us"):
        yield Broken(f"max_{field} = {most:g}: {NOT_WRITTEN}", unknown=True)
    elif known and statistics.median(known) > most:
        yield Broken(f"max_{field} = {most:g}: it has {statistics.median(known):.4g}")


def _comparable(hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    planned = {bool(host.comparable_plan_us) for host in hosts if host}
    if not all(host and host.comparable_us for host in hosts):
        yield Broken(f"slower_host: {NOT_WRITTEN}", unknown=True)
    elif len(planned) > 1:
        yield Broken("slower_host: some of its rows have a plan and others have none", unknown=True)


def _never_waits(hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    waiting = [host for host in hosts if host and host.synchronisations]
    if waiting:
        yield Broken(f"no_sync: it waits for the GPU, {', '.join(places(waiting[-1], SYNCHRONISATION))}")
    elif any(host is None or host.synchronisations is None for host in hosts):
        yield Broken(f"no_sync: {NOT_WRITTEN}", unknown=True)


def _row_of_rival(case: ComparedCase, rival: Rival) -> Iterator[Broken]:
    """Compare with the other backend in the same processes; a ratio must be above the limit with confidence."""
    asked = f"max_vs_backend = {rival.ratio:g} of {rival.backend}"
    if case.after[0].identity.backend == rival.backend:
        return
    pairs = [(other, row) for run, row in case.head if (other := _of_backend(rival.backend, row, run.rows))]
    if not pairs:
        yield Broken(f"{asked}: this run has no case of that backend with its shape", unknown=True)
        return
    [effect] = effects.effects([_beside(pairs)])
    if effect.bound(-1) > math.log(rival.ratio):
        yield Broken(f"{asked}: it takes {math.exp(effect.change):.3f} of its {effect.seen.domain}")


def _of_backend(backend: str, row: Row, rows: Iterable[Row]) -> Row | None:
    others = (other for other in rows if other.identity.backend == backend)
    return next((other for other in others if _shape(other) == _shape(row)), None)


def _shape(row: Row) -> tuple[str | None, ...]:
    return row.identity.routine, row.identity.shape, row.identity.device


def _beside(pairs: Sequence[tuple[Row, Row]]) -> Replicates:
    return effects.replicates([rival for rival, _ in pairs], [row for _, row in pairs], paired=True, whole=True)[0]
