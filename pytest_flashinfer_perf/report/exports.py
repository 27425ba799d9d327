"""Write a run for other tools: GPU medians in microseconds, rates, noisy cases, and cases without a time.

What each format has to look like: https://github.com/benchmark-action/github-action-benchmark#examples (a tool
`customSmallerIsBetter`), https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.printing import safe, safe_lines
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.row import Identity, Row
from pytest_flashinfer_perf.rows.run_file import PICOSECONDS, Run, RunError, Unmeasured
from pytest_flashinfer_perf.rows.scatter import is_measured

SCHEMA = 1
WITHOUT_TIME = "cases without a time"
RATES = ("tflops", "tb_per_sec", "sol_pct")


@dataclass(frozen=True)
class ExportedRow:
    """A case with a unique name, and its row or the reason why it has none."""

    name: str
    status: str
    identity: Identity
    row: Row | None
    reason: str | None

    @property
    def median_and_deviation(self) -> tuple[float, float] | tuple[None, None]:
        """In microseconds; a deviation that nobody knows is none."""
        if self.row is None:
            return None, None
        deviation = self.row.stats.stddev if is_measured(self.row.stats.stddev) else 0.0
        return round(1e6 * self.row.median, PICOSECONDS), round(1e6 * deviation, PICOSECONDS)

    @property
    def rates(self) -> dict[str, float | None]:
        known = {name: getattr(self.row.throughput, name) if self.row else None for name in RATES}
        return {name: rate if rate is not None and math.isfinite(rate) else None for name, rate in known.items()}

    @property
    def labels(self) -> dict[str, str]:
        known = {name: getattr(self.identity, name) for name in ("routine", "backend", "shape", "device_name")}
        return {"case": self.name, **{name: safe(str(value)) for name, value in known.items() if value is not None}}


def entries(run: Run) -> list[ExportedRow]:
    """Rows first; RunError where there is none, which an empty file would hide."""
    if not run.ours:
        raise RunError(f"{run.name} has no row to export: {counted(len(run.unmeasured), 'case')} without a time")
    several = len({row.identity.place for row in run.ours}) > 1
    named: Counter[str] = Counter()
    found = []
    known: list[Row | Unmeasured] = [*run.ours, *run.unmeasured]
    for one in known:
        identity = one.identity
        where = f" on {identity.device_name} {identity.place}" if several and identity.place else ""
        named[f"{identity.case}{where}"] += 1
        nth = named[f"{identity.case}{where}"]
        name = safe(f"{identity.case}{where}{f' ({nth})' if nth > 1 else ''}")  # whatever reads it may print it
        if isinstance(one, Unmeasured):
            found.append(ExportedRow(name, safe(one.outcome), identity, None, safe_lines(one.reason)))
        else:
            found.append(ExportedRow(name, str(one.status), identity, one, None))
    return found


def as_csv(run: Run) -> str:
    names = ("routine", "backend", "shape", "device_name", "gpu_uuid")
    header = ("schema", "case", *names, "status", "median_us", "std_us", *RATES, "reason")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for one in entries(run):
        known = (getattr(one.identity, name) for name in names)
        cells = (one.name, *known, one.status, *one.median_and_deviation, *one.rates.values(), one.reason)
        writer.writerow((SCHEMA, *(safe_lines(cell) if isinstance(cell, str) else cell for cell in cells)))
    return text.getvalue()


def as_github_action_benchmark(run: Run) -> str:
    """An entry needs a value: cases that have none are one entry more, the number of them, where smaller is better."""
    found = entries(run)
    without = [one for one in found if one.row is None]
    shown: list[dict[str, Any]] = []
    for one in found:
        median, deviation = one.median_and_deviation
        if median is not None:
            rates = [f"{name} {rate:.4g}" for name, rate in one.rates.items() if rate is not None]
            facts = [
                f"schema {SCHEMA}",
                f"status {one.status}",
                *rates,
                f"device {safe(str(one.identity.device_name))}",
            ]
            value = {"name": one.name, "unit": "us", "value": median, "range": f"± {deviation:.4g} us"}
            shown.append({**value, "extra": "\n".join(facts)})
    reasons = "\n".join([f"schema {SCHEMA}", *(f"{one.name}: {one.status}: {one.reason}" for one in without)])
    shown.append({"name": WITHOUT_TIME, "unit": "cases", "value": len(without), "extra": reasons})
    return json.dumps(shown, indent=1, allow_nan=False) + "\n"


def as_openmetrics(run: Run) -> str:
    found = entries(run)
    families = {
        "median_microseconds": ("device time of a call", [(one, one.median_and_deviation[0]) for one in found]),
        **{name: (f"{name} of it", [(one, one.rates[name]) for one in found]) for name in RATES},
    }
    lines = ["# TYPE flashinfer_perf_export info", "# HELP flashinfer_perf_export What wrote this."]
    lines.append(f"flashinfer_perf_export_info{_braced({'schema': str(SCHEMA)})} 1")
    for name, (meaning, values) in families.items():
        lines += _family(name, meaning, [(one.labels, value) for one, value in values if value is not None])
    lines += _family(
        "status", "of a case, measured or not", [({**one.labels, "status": one.status}, 1) for one in found]
    )
    return "\n".join([*lines, "# EOF"]) + "\n"


def _family(name: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    whole = f"flashinfer_perf_{name}"
    yield f"# TYPE {whole} gauge"
    if name.endswith("microseconds"):
        yield f"# UNIT {whole} microseconds"
    yield f"# HELP {whole} {meaning}"
    yield from (f"{whole}{_braced(labels)} {value!r}" for labels, value in samples)


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


FORMATS = {
    "csv": as_csv,
    "github-action-benchmark": as_github_action_benchmark,
    "openmetrics": as_openmetrics,
}
