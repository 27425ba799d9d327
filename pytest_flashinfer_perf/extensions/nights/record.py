"""The lines of published runs: JSON, a file per month, to which lines are only ever added.

A `run` is a line with a column for each figure of its cases. What many runs share has a line of its own before the
first that names it: an `environment`, a `case` (again where its command is another), the `kernels` of a call. Their ids
are hashes; a case's is that of its name and of how it was measured.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_flashinfer_perf.api import Row, Run, fields, file_io, formatting, run_file, scatter, series
from pytest_flashinfer_perf.extensions.nights.levels import Floats

SCHEMA, SUFFIX = 1, ".jsonl"
LEAST_US, MOST = 1e-6, 1e15
COLUMNS = ("us", "busy_us", "cycles", "ghz")
Places: TypeAlias = npt.NDArray[np.int32]


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
class LaunchedKernels:
    """The kernels of a call, in order."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Night:
    """A run on one card. Each of its columns has a number per case, NaN where it has none.

    Cases and kernels are named by their places among those of all records, -1 for kernels that are not known.
    """

    id: str
    when: datetime
    commit: str | None
    environment: str
    cases: Places
    kernels: Places
    columns: Mapping[str, Floats]
    failed: Mapping[str, str]


@dataclass
class Records:
    """What the lines of some files say, in their order."""

    environments: dict[str, RunEnvironment] = field(default_factory=dict)
    cases: dict[str, WatchedCase] = field(default_factory=dict)
    kernels: dict[str, LaunchedKernels] = field(default_factory=dict)
    nights: dict[str, Night] = field(default_factory=dict)
    places: dict[str, dict[str, int]] = field(default_factory=lambda: {"case": {}, "kernels": {}})

    def read(self, text: str, where: str) -> Records:
        """With the lines of one more file; raises RunError with the number of the line that is none."""
        lines = text.split("\n")
        if lines.pop():
            raise run_file.RunError(f"{where}:{len(lines) + 1}: the line is cut off: it has no end")
        for number, line in enumerate(lines, 1):
            self._read(line, f"{where}:{number}")
        return self

    def _read(self, line: str, where: str) -> None:
        try:
            self._take(_object(line))
        except (fields.FieldError, ValueError, RecursionError, OverflowError) as error:
            raise run_file.RunError(f"{where}: no line of published runs: {error}") from error

    def _take(self, said: Mapping[str, Any]) -> None:
        kind, name = said.get("kind"), said.get("id")
        if kind not in KINDS or not isinstance(name, str):
            raise fields.FieldError(f"its kind is {fields.shown(kind)}, known are {', '.join(KINDS)}, each with an id")
        if kind == "run":
            self.nights.setdefault(name, self._night(said))
            return
        shared: Mapping[str, dict[str, Any]]
        shared = {"environment": self.environments, "case": self.cases, "kernels": self.kernels}
        shared[kind][name] = fields.read(KINDS[kind], said, "it")
        if kind in self.places:
            self.places[kind].setdefault(name, len(self.places[kind]))

    def _night(self, said: Mapping[str, Any]) -> Night:
        if repr(said.get("schema")) != repr(SCHEMA):  # 1.0 and true are equal to 1
            raise fields.FieldError(f"its schema is {fields.shown(said.get('schema'))}, this version reads {SCHEMA}")
        head = fields.read(_Head, said, "it")
        cases, kernels = (_placed(said.get(name), self.places[name], name) for name in self.places)
        if len(kernels) != len(cases) or len(np.unique(cases)) != len(cases) or -1 in cases:
            raise fields.FieldError("each case must be there once, with its kernels or null")
        if head.environment not in self.environments:
            raise fields.FieldError(f"environment {fields.shown(head.environment)} has no line before it")
        columns = {name: _numbers(said.get(name), len(cases), name) for name in COLUMNS}
        if np.isnan(columns["us"]).any():
            raise fields.FieldError("us must be a number for each case")
        when = datetime.fromisoformat(head.when)
        when = (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
        return Night(
            id=head.id,
            when=when,
            commit=head.commit,
            environment=head.environment,
            cases=cases,
            kernels=kernels,
            columns=columns,
            failed=head.failed,
        )


@dataclass(frozen=True, kw_only=True)
class _Head:
    id: str
    when: str
    environment: str
    commit: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)


KINDS: dict[str, Callable[..., Any]] = {
    "environment": RunEnvironment,
    "case": WatchedCase,
    "kernels": LaunchedKernels,
    "run": Night,
}


def _object(line: str) -> Mapping[str, Any]:
    said = fields.parsed(line)
    if not isinstance(said, dict):
        raise fields.FieldError("it is no object")
    return said


def _placed(values: Any, known: Mapping[str, int], name: str) -> Places:
    if not isinstance(values, list) or not {*map(type, values)} <= {str, type(None)}:
        raise fields.FieldError(f"{name} must be a list of ids")
    try:
        return np.array([-1 if one is None else known[one] for one in values], dtype=np.int32)
    except KeyError as error:
        raise fields.FieldError(f"{name} {error} has no line before it") from error


def _numbers(values: Any, count: int, name: str) -> Floats:
    if not isinstance(values, list) or len(values) != count or not {*map(type, values)} <= {int, float, type(None)}:
        raise fields.FieldError(f"{name} must be a list of as many numbers as it has cases")
    numbers = np.array(values, dtype=np.float64)
    least = LEAST_US if name == "us" else 0.0
    if not (np.isnan(numbers) | ((numbers >= least) & (numbers < MOST))).all():
        raise fields.FieldError(f"{name} must be numbers from {least:g} to {MOST:g}")
    return numbers


# What is published of a run.


def added(runs: Iterable[Run], known: Callable[[str], str], where: str) -> dict[str, str]:
    """What these runs add to the file of their month, of which it is known what it has."""
    files: dict[str, Records] = {}
    made: dict[str, str] = {}
    for run in sorted(runs, key=lambda run: run.when):
        name = f"{run.when.astimezone(timezone.utc):%Y-%m}{SUFFIX}"
        if name not in files:
            files[name] = Records().read(known(name), f"{where}:{name}")
        text = "".join(lines(run, files[name]))
        files[name].read(text, run.source)
        made[name] = made.get(name, "") + text
    return made


def lines(run: Run, known: Records) -> Iterator[str]:
    """The lines of a run that a file lacks, which says what is known."""
    timed = [row for row in run.ours or run.rows if scatter.is_measured(row.median)]
    measured = [row for row in timed if series.counts(row)]
    failed = _failed(run)
    sides = list(formatting.grouped(measured, lambda row: (run.model(row), row.identity.gpu_uuid)))
    if not sides and not failed:
        verb = "is" if len(timed) == 1 else "are"
        left = (
            "it measured nothing"
            if not timed
            else f"its {formatting.counted(len(timed), 'row')} {verb} of a busy machine"
        )
        raise run_file.RunError(f"{run.source}: {left} and nothing failed: there is nothing to publish")
    names = (one.identity.device_name for one in run.unmeasured if one.identity.device_name)
    meant_for = next(names, None) or run.machine.get("gpu") or "unknown"
    for (gpu, card), rows in sides or [((str(meant_for), None), [])]:
        name = _hash([_fingerprint(run), gpu, card])
        if name not in known.nights:
            yield from _lines(run, name, _environment(run, gpu, card, rows), rows, failed, known)


def _lines(  # noqa: PLR0913, PLR0917 - the parts of a line
    run: Run, name: str, environment: RunEnvironment, rows: Sequence[Row], failed: Mapping[str, str], known: Records
) -> Iterator[str]:
    keys = keys_of(run, rows)
    launched = [None if row.trace.kernels is None else LaunchedKernels(names=row.trace.kernels) for row in rows]
    kernels = [None if one is None else _hash(one.names) for one in launched]
    where = _hash(fields.written(environment))
    shared: dict[tuple[str, str], tuple[Any, Any]] = {("environment", where): (environment, known.environments)}
    shared |= {("case", key): (_case(row), known.cases) for key, row in zip(keys, rows, strict=True)}
    shared |= {("kernels", key): (one, known.kernels) for key, one in zip(kernels, launched, strict=True) if key}
    for (kind, key), (said, there) in shared.items():
        if there.get(key) != said:
            yield _line(kind, key, {one: value for one, value in fields.written(said).items() if value is not None})
    columns = {one: [_short(value) for value in column] for one, column in _columns(rows).items()}
    facts = {"commit": run.commit.id, "environment": where, "case": keys, **columns, "kernels": kernels}
    yield _line("run", name, {"schema": SCHEMA, "when": run.when.isoformat(), **facts, "failed": failed})


def _line(kind: str, key: str, said: Mapping[str, Any]) -> str:
    return file_io.as_json({"kind": kind, "id": key, **said}) + "\n"


def keys_of(run: Run, rows: Iterable[Row]) -> list[str]:
    """The hash of each case's name and of how it was measured; with its test where two in a run have the same."""
    keys: dict[str, None] = {}
    for row in rows:
        same = [row.case, *series.conditions(run, row)]
        key = _hash(same)
        keys[key if key not in keys else _hash([*same, row.fullname])] = None
    return list(keys)


def _case(row: Row) -> WatchedCase:
    known = row.identity
    return WatchedCase(name=row.case, test=row.fullname, family=known.family, routine=known.routine, repro=known.repro)


def _environment(run: Run, gpu: str, card: str | None, rows: Sequence[Row]) -> RunEnvironment:
    software = {name: None if (said := run.machine.get(name)) is None else str(said) for name in run_file.SOFTWARE}
    unmet = sorted({package for row in rows for package in row.library.unmet or {}})
    switches = {name: value for row in rows for name, value in (row.library.switches or {}).items()}
    return RunEnvironment(gpu=gpu, card=card, software=software, unmet=tuple(unmet), switches=switches)


def _columns(rows: Sequence[Row]) -> dict[str, list[float | None]]:
    seen = [series.figures_of(row) for row in rows]
    return {
        "us": [1e6 * row.median for row in rows],
        "busy_us": [1e6 * one["busy"] if one["busy"] else None for one in seen],
        "cycles": [one["cycles"] for one in seen],
        "ghz": [row.clocks.sm_ghz for row in rows],
    }


def _short(value: float | None) -> float | None:
    """Six digits, which is more than a clock has."""
    return None if value is None or not math.isfinite(value) or value < 0 else float(f"{value:.6g}")


def _failed(run: Run) -> dict[str, str]:
    found = {row.case: "INVALID: faster than its device can be" for row in run.rows if row.status == "invalid"}
    return found | {case: why.replace(f"{run.source}: ", "", 1) for case, why in series.failures(run)}


def _fingerprint(run: Run) -> list[str]:
    rows, when = run.fingerprint
    return [*sorted(map(repr, rows)), str(when), *sorted(run.failed)]


def _hash(said: Any) -> str:
    return hashlib.sha256(file_io.as_json(said).encode()).hexdigest()[:12]
