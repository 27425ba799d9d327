"""Runs and their rows, read from pytest-benchmark's JSON: a run is one process, a row is one case in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pytest_flashinfer_perf.runs import host_time
from pytest_flashinfer_perf.runs.host_time import HostTime
from pytest_flashinfer_perf.runs.run_file import SCHEMA_KEY, RunError
from pytest_flashinfer_perf.runs.scatter import median_error

STORAGE = Path(".benchmarks")
FAILED = "failed"  # the outcome of a test that did not skip and did not pass
LIBRARIES = ("flashinfer", "torch", "cuda", "cudnn", "cudnn_frontend")


@dataclass(frozen=True)
class Row:
    """What the gate needs of a row. `case` is what rows are matched by, and `info` the row's whole extra_info."""

    case: str
    fullname: str
    name: str
    median: float
    spread: float
    middle: float
    rounds: int
    info: Mapping[str, Any] = field(repr=False)
    host: HostTime | None = field(default=None, repr=False)

    @property
    def cycles(self) -> float | None:
        return _positive(self.info.get("cycles"))

    @property
    def ghz(self) -> float | None:
        return _positive(self.info.get("sm_ghz"))

    @property
    def bound(self) -> str | None:
        return self.info.get("bound")

    @property
    def roof_percent(self) -> float | None:
        return _positive(self.info.get("sol_pct"))

    @property
    def instrument(self) -> str:
        """Plain benchmarks read the host's clock."""
        return str(self.info.get("instrument", "wall"))

    @property
    def kernels(self) -> tuple[str, ...] | None:
        kernels = self.info.get("kernels")
        return None if kernels is None else tuple(kernels)

    @property
    def waits(self) -> float:
        """The share of a call in which none of its kernels runs; 0 where nobody saw."""
        busy, span = _positive(self.info.get("busy_s")), _positive(self.info.get("span_s"))
        return 1 - busy / span if busy and span else 0.0

    @property
    def within(self) -> float:
        """The relative error of the median, from the samples of its own process."""
        return median_error(self.middle, self.rounds)

    def placed(self, figure: Literal["median", "cycles"]) -> tuple[float, ...]:
        """That figure of each placement; nothing where one lacks it."""
        figures = [_positive(placement.get(figure)) for placement in self.info.get("placements") or ()]
        return tuple(value for value in figures if value) if None not in figures else ()

    @property
    def names(self) -> tuple[str, ...]:
        """What a glob of the settings file can call it."""
        test = self.name.removeprefix("test_").replace("[", "/", 1).removesuffix("]")
        family = self.info.get("family")
        return (self.case, *((f"{family}/{self.case}", f"{family}/{test}") if family else ()), self.fullname)


@dataclass(frozen=True)
class Run:
    """One process: its rows, the cases that it could not measure with outcome and reason, and where it ran."""

    source: str
    when: datetime
    rows: Mapping[str, Row]
    machine: Mapping[str, Any] = field(default_factory=dict)
    commit: str | None = None
    unmeasured: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    twice: frozenset[str] = frozenset()

    @property
    def driver(self) -> str | None:
        return self.machine.get("driver")

    @property
    def libraries(self) -> dict[str, Any]:
        return {name: self.machine.get(name) for name in LIBRARIES}

    @property
    def gpus(self) -> frozenset[str | None]:
        """Their UUIDs; None where rows are of a CPU."""
        return frozenset(row.info.get("gpu_uuid") for row in self.rows.values())

    @property
    def identity(self) -> object:
        """The same for copies of a file, and for the two files of a run that was both saved and written."""
        rows = [(row.case, row.median, row.spread, str(row.info.get("case_s"))) for row in self.rows.values()]
        is_stamped = any("case_s" in row.info for row in self.rows.values())
        return frozenset(rows), None if is_stamped else self.when

    @property
    def failed(self) -> list[str]:
        return [name for name, (outcome, _) in self.unmeasured.items() if outcome == FAILED]

    def said_of(self, names: Iterable[str]) -> tuple[str, str]:
        """Outcome and first line of the reason of a case that was not measured, by the first name that is known."""
        return next((self.unmeasured[name] for name in names if name in self.unmeasured), ("", ""))

    def model(self, row: Row) -> str:
        """The GPU's name; the CPU's of rows that say nothing of a device."""
        return str(row.info.get("device_name") or self.machine.get("cpu", {}).get("brand_raw", "unknown"))


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value > 0 else None


def read(names: Iterable[str | Path], storage: Path = STORAGE) -> list[Run]:
    """Files, folders of files, and names in pytest-benchmark's storage, in the order in which they are given."""
    found = [run for name in names for run in _read_one(name, storage)]
    if not found:
        raise RunError("no files of results were given")
    verify_once(found)
    return found


def verify_once(found: Iterable[Run]) -> None:
    """Each run is a process: a copy of one would count as another that agrees with it."""
    seen: dict[object, Run] = {}
    for run in found:
        first = seen.setdefault(run.identity, run)
        if first is not run:
            raise RunError(f"{run.source} is the same run as {first.source}: a process counts once, leave one out")


def _read_one(name: str | Path, storage: Path) -> list[Run]:
    if not str(name):
        raise RunError("an empty name: of a variable that is not set?")
    path = Path(name)
    if path.is_file():
        return [_whole(path, _loaded(path))]
    if path.is_dir():
        loaded = ((file, _loaded(file)) for file in sorted(path.rglob("*.json")))
        runs = [_whole(file, document) for file, document in loaded if "benchmarks" in document]
        if not runs:
            raise RunError(f"{path}: no file of pytest-benchmark in this folder")
        return runs
    stored = _stored(str(path), storage)
    return [_whole(stored, _loaded(stored))]


def _stored(name: str, storage: Path) -> Path:
    """The latest of that name, as `--benchmark-save` numbers them: 0007_NAME.json, below a folder per machine."""
    numbered = "[0-9]" * 4
    patterns = (f"{numbered}_{name}.json", f"{name}.json", f"{name}_*.json") if "/" not in name else ()
    found = [file for pattern in patterns for file in storage.rglob(pattern)]
    if not found:
        raise RunError(f"{name}: no such file or folder, and no such name in {storage}")
    return max(found, key=lambda file: (file.name.partition("_")[0], file.stat().st_mtime))


def _loaded(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def _whole(path: Path, document: Mapping[str, Any]) -> Run:
    if "benchmarks" not in document:
        raise RunError(f"{path}: not a file of pytest-benchmark, it has no benchmarks")
    try:
        return parsed(document, str(path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: not a file of pytest-benchmark: {type(error).__name__}: {error}") from error


def parsed(document: Mapping[str, Any], source: str) -> Run:
    rows = [_row(record) for record in document["benchmarks"]]
    cases = [row.case for row in rows]
    commit = document.get("commit_info") or {}
    return Run(
        source=source,
        when=_when(document.get("datetime")),
        rows={row.case: row for row in rows},
        machine=document.get("machine_info") or {},
        commit=commit.get("id"),
        unmeasured=dict(_unmeasured(document)),
        twice=frozenset(case for case in cases if cases.count(case) > 1)
        if len(set(cases)) < len(cases)
        else frozenset(),
    )


def _unmeasured(document: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Failures last: of two outcomes of one case the last is kept."""
    left = (document.get(SCHEMA_KEY) or {}).get("unmeasured", ())
    for one in sorted(left, key=lambda one: one["outcome"] == FAILED):
        yield str(one["case"]), (str(one["outcome"]), str(one["reason"]).partition("\n")[0])


def _row(record: Mapping[str, Any]) -> Row:
    stats, info = record["stats"], record.get("extra_info") or {}
    median = _number(stats["median"])
    return Row(
        case=str(info.get("case", record["fullname"])),
        fullname=str(record["fullname"]),
        name=str(record["name"]),
        median=median,
        spread=_number(stats["stddev"]) / median if median > 0 else 0.0,
        middle=_number(stats.get("iqr", stats["stddev"])) / median if median > 0 else 0.0,
        rounds=max(1, int(stats["rounds"])),
        info=info,
        host=host_time.of_row(info),
    )


def _number(value: Any) -> float:
    """JSON without a value for it becomes NaN, which no verdict takes for a time."""
    return math.nan if value is None else float(value)


def _when(text: str | None) -> datetime:
    """pytest-benchmark before 5 wrote times without an offset, in UTC."""
    if text is None:
        return datetime.fromtimestamp(0, timezone.utc)
    when = datetime.fromisoformat(text)
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
