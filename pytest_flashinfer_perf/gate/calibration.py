"""The noise of a GPU, measured by `flashinfer-perf calibrate` and stored in a file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import platformdirs

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import FileError, read_json, write_json
from pytest_flashinfer_perf.gate import cycles, noise, tails
from pytest_flashinfer_perf.gate.effects import PAIR, Q_SLOWER, RISK
from pytest_flashinfer_perf.gate.noise import Noise
from pytest_flashinfer_perf.gate.options import AUTO, NONE
from pytest_flashinfer_perf.runs import fields
from pytest_flashinfer_perf.runs.fields import FieldError
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run

SCHEMA = 1
FEWEST = 3
VALID = timedelta(days=30)
DOMAINS = ("time", "cycles")


class CalibrationError(FlashinferPerfError):
    """A calibration that cannot be made or read."""


@dataclass(frozen=True)
class Figures:
    """The noise of a case in one domain, as far as it is read again."""

    sd: float
    df: float

    def __post_init__(self) -> None:
        if not (0 < self.sd < math.inf and 0 < self.df < math.inf):
            raise FieldError(f"sd and df must be above 0, got {self.sd} and {self.df}")


@dataclass(frozen=True)
class CalibratedCase:
    how: tuple[Any, ...]
    time: Figures | None = None
    cycles: Figures | None = None


@dataclass(frozen=True)
class Stored:
    """The content of the file."""

    gpu: str | None
    model: str
    driver: str | None
    when: str
    processes: int
    cases: Mapping[str, CalibratedCase]


@dataclass(frozen=True)
class Calibration:
    path: Path
    gpu: str | None
    model: str
    driver: str | None
    when: datetime
    processes: int
    cases: Mapping[str, CalibratedCase]

    def noise(self, row: Row, domain: str) -> Noise | None:
        """The calibrated variance of one process; None if the case was not calibrated as it is measured now."""
        known = self.cases.get(row.case)
        figures = getattr(known, domain) if known and list(known.how) == how(row) else None
        return Noise(figures.sd**2, figures.df, "calibrated") if figures else None

    def is_of(self, run: Run, row: Row) -> bool:
        return (self.gpu, self.model) == (row.identity.gpu_uuid, run.model(row))

    def stale(self, run: Run) -> str | None:
        """Why it is not to be believed of this run."""
        if run.driver != self.driver:
            return f"{self.path}: calibrated with driver {self.driver}, this is {run.driver}"
        if run.when - self.when > VALID:
            return (
                f"{self.path}: calibrated {(run.when - self.when).days} days before this run, {VALID.days} are allowed"
            )
        return None


def how(row: Row) -> list[Any]:
    return [row.provenance.instrument, row.provenance.cold_l2, row.provenance.cuda_graph]


def find(choice: str, gpus: Iterable[str | None]) -> list[Calibration]:
    """The named file, or for `auto` that of each of these GPUs which has one."""
    if choice == NONE:
        return []
    if choice != AUTO:
        return [read(Path(choice))]
    return [read(path) for path in map(kept, dict.fromkeys(gpus)) if os.access(path, os.R_OK)]


def kept(gpu: str | None) -> Path:
    return platformdirs.user_cache_path("pytest-flashinfer-perf") / "calibration" / f"{gpu or 'cpu'}.json"


def read(path: Path) -> Calibration:
    try:
        known = fields.read(Stored, read_json(path), "it")
        when = datetime.fromisoformat(known.when)
    except (FileError, FieldError, ValueError) as error:
        cure = "make it again with flashinfer-perf calibrate"
        raise CalibrationError(f"{path}: not a calibration ({error}), {cure}") from error
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return Calibration(path, known.gpu, known.model, known.driver, when, known.processes, known.cases)


def write(path: Path, calibrated: Mapping[str, Any]) -> None:
    write_json(path, calibrated)


def verify_enough(processes: int) -> None:
    if processes < FEWEST:
        raise CalibrationError(f"--processes={processes}: the noise between processes needs at least {FEWEST}")


def of(runs: Sequence[Run]) -> dict[str, Any]:
    """From processes that ran the same code: what each case varies by between them."""
    verify_enough(len(runs))
    rows = _everywhere(runs)
    first = next(iter(rows.values()))[0]
    noises = {domain: _noises(rows, domain) for domain in DOMAINS}
    return {
        "flashinfer_perf_calibration": SCHEMA,
        "gpu": first.identity.gpu_uuid,
        "model": runs[0].model(first),
        "driver": runs[0].driver,
        "when": runs[-1].when.isoformat(),
        "processes": len(runs),
        "cases": {case: _case(case, of_case[0], noises, len(rows)) for case, of_case in rows.items()},
    }


def _everywhere(runs: Sequence[Run]) -> dict[str, list[Row]]:
    """Cases that every process measured, on one and the same device."""
    cases = [case for case in runs[0].by_case if all(case in run.by_case for run in runs)]
    if not cases:
        raise CalibrationError("no case was measured by every process")
    rows = {case: [run.by_case[case] for run in runs] for case in cases}
    if len({row.identity.gpu_uuid for of_case in rows.values() for row in of_case}) > 1:
        raise CalibrationError("the processes ran on several GPUs, a calibration is of one")
    return rows


def _noises(rows: Mapping[str, Sequence[Row]], domain: str) -> dict[str, Noise]:
    """A case's own variance, blended with what all of them say: some processes alone say little."""
    own = {case: _logs(of_case, domain) for case, of_case in rows.items()}
    seen = {case: (noise.variance(logs), len(logs) - 1.0) for case, logs in own.items() if logs}
    pool = noise.pooled(list(seen.values()))
    alone = {case: Noise(s2, df, "calibrated") for case, (s2, df) in seen.items()}
    return {case: pool.blended(*seen[case]) for case in seen} if pool else alone


def _logs(rows: Sequence[Row], domain: str) -> list[float]:
    values = cycles.compared_by(rows, domain)
    return [math.log(value) for value in values] if all(value > 0 for value in values) else []


def _case(case: str, row: Row, noises: Mapping[str, Mapping[str, Noise]], cases: int) -> dict[str, Any]:
    known = {domain: _figures(noises[domain][case], cases) for domain in DOMAINS if case in noises[domain]}
    return {"how": how(row), "bound": row.throughput.bound, "median_us": row.median * 1e6, **known}


def _figures(one: Noise, cases: int) -> dict[str, float]:
    """`floor`: two processes of the same code are less apart than this in 95 of 100 pairs."""
    apart = one.sd * math.sqrt(PAIR)
    return {
        "sd": one.sd,
        "df": one.df,
        "floor": math.expm1(tails.beyond(RISK / 2, one.df) * apart),
        "detectable_in_one_run": _detectable(one, apart, cases),
        "detectable_in_five_pairs": _detectable(one, apart / math.sqrt(5), cases),
    }


def _detectable(one: Noise, error: float, cases: int) -> float:
    """A slowdown that is found in 95 of 100 comparisons, of as many cases as were calibrated."""
    return math.expm1((tails.beyond(Q_SLOWER / cases, one.df) + tails.beyond(RISK, one.df)) * error)
