"""The runs of a folder, each reduced to what many nights are judged by: a column for each figure of its cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_flashinfer_perf.api import Row, Run, formatting, run_file, scatter, series
from pytest_flashinfer_perf.extensions.nights.levels import Floats

COLUMNS = ("us", "busy_us", "cycles", "ghz")
Places: TypeAlias = npt.NDArray[np.int32]
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunEnvironment:
    """The card and the software of a run."""

    gpu: str
    card: str | None = None
    software: Mapping[str, str | None] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    switches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WatchedCase:
    """The names of a case, and the command that runs it again."""

    name: str
    test: str
    family: str | None = None
    routine: str | None = None
    repro: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Those that thresholds may be set for."""
        return (self.name, *((f"{self.family}/{self.name}",) if self.family else ()), self.test)


@dataclass(frozen=True, kw_only=True)
class Night:
    """A run on one card. Each of its columns has a number per case, NaN where it has none.

    Cases and kernels are named by their places among those of all records, -1 for kernels that are not known.
    """

    when: datetime
    commit: str | None
    environment: RunEnvironment
    cases: Places
    kernels: Places
    columns: Mapping[str, Floats]
    failed: Mapping[str, str]


@dataclass
class Records:
    """What all runs of a folder say; a case by its key, the kernels of a call by their names."""

    cases: dict[Key, WatchedCase] = field(default_factory=dict)
    kernels: dict[tuple[str, ...], int] = field(default_factory=dict)
    nights: dict[object, Night] = field(default_factory=dict)
    places: dict[Key, int] = field(default_factory=dict)  # of cases

    def add(self, run: Run) -> None:
        """A night for each card of the run; a copy of a run adds none, and a run of a loaded machine nothing either."""
        timed = (row for row in run.ours or run.rows if scatter.is_measured(row.median))
        measured = [row for row in timed if series.counts(row)]
        failed = _failed(run)
        sides = list(formatting.grouped(measured, lambda row: (run.model(row), row.identity.gpu_uuid)))
        if failed and not sides:
            names = (one.identity.device_name for one in run.unmeasured if one.identity.device_name)
            sides = [((str(next(names, None) or run.machine.get("gpu") or "unknown"), None), [])]
        for (gpu, card), rows in sides:
            known_by = (hash(run.fingerprint), *run.failed, gpu, card)
            self.nights.setdefault(known_by, self._night(run, _environment(run, gpu, card, rows), rows, failed))

    def _night(self, run: Run, environment: RunEnvironment, rows: Sequence[Row], failed: Mapping[str, str]) -> Night:
        keys = keys_of(run, rows)
        self.cases.update(zip(keys, map(_case, rows), strict=True))
        launched = [row.trace.kernels for row in rows]
        return Night(
            when=run.when.astimezone(timezone.utc),
            commit=run.commit.id,
            environment=environment,
            cases=np.array([self.places.setdefault(key, len(self.places)) for key in keys], dtype=np.int32),
            kernels=np.array(
                [-1 if names is None else self.kernels.setdefault(names, len(self.kernels)) for names in launched],
                dtype=np.int32,
            ),
            columns=_columns(rows),
            failed=failed,
        )


def read(folder: Path) -> Records:
    """Read the runs of a folder, of which one at a time is held in memory."""
    records = Records()
    for path in run_file.files(folder) if folder.is_dir() else ():
        document = run_file.load(path)
        if "benchmarks" in document:
            records.add(run_file.parse(document, str(path)))
    if not records.nights:
        quiet = "in which something was measured while nothing else ran"
        raise run_file.RunError(f"{folder}: no folder with the JSON files of runs, {quiet}")
    return records


def keys_of(run: Run, rows: Iterable[Row]) -> list[Key]:
    """Each case's name and how it was measured; with its test where two in a run have the same."""
    keys: dict[Key, None] = {}
    for row in rows:
        key = (row.case, *series.conditions(run, row))
        keys[key if key not in keys else (*key, row.fullname)] = None
    return list(keys)


def _case(row: Row) -> WatchedCase:
    known = row.identity
    return WatchedCase(name=row.case, test=row.fullname, family=known.family, routine=known.routine, repro=known.repro)


def _environment(run: Run, gpu: str, card: str | None, rows: Sequence[Row]) -> RunEnvironment:
    software = {name: None if (said := run.machine.get(name)) is None else str(said) for name in run_file.SOFTWARE}
    unmet = sorted({package for row in rows for package in row.library.unmet or {}})
    switches = {name: value for row in rows for name, value in (row.library.switches or {}).items()}
    return RunEnvironment(gpu=gpu, card=card, software=software, unmet=tuple(unmet), switches=switches)


def _columns(rows: Sequence[Row]) -> dict[str, Floats]:
    """What a row does not say is NaN."""
    seen = [series.figures_of(row) for row in rows]
    columns = {
        "us": [1e6 * row.median for row in rows],
        "busy_us": [1e6 * one["busy"] if one["busy"] else None for one in seen],
        "cycles": [one["cycles"] for one in seen],
        "ghz": [row.clocks.sm_ghz for row in rows],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def _failed(run: Run) -> dict[str, str]:
    found = {row.case: "INVALID: faster than its device can be" for row in run.rows if row.status == "invalid"}
    return found | {case: why.replace(f"{run.source}: ", "", 1) for case, why in series.failures(run)}
