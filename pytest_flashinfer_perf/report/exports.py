"""Write runs for other tools: GPU medians in microseconds, rates, noisy cases, and cases without a time.

What each format has to look like: https://github.com/benchmark-action/github-action-benchmark#examples (a tool
`customSmallerIsBetter`), https://prometheus.io/docs/instrumenting/exposition_formats/,
https://github.com/pytorch/pytorch/wiki/How-to-integrate-with-PyTorch-OSS-benchmark-database.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.printing import safe, safe_lines
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.row import Identity, Row
from pytest_flashinfer_perf.rows.run_file import PICOSECONDS, Run, RunError, Unmeasured
from pytest_flashinfer_perf.rows.scatter import is_measured

SCHEMA = 1
OF_MANY = ("csv",)  # formats that several runs may be written in
BENCHMARK = "flashinfer-perf"
WITHOUT_TIME = "cases without a time"
RATES = ("tflops", "tb_per_sec", "sol_pct")
# Names without abbreviations and units without prefixes, which promtool asks for.
BASE_UNITS = {
    "tflops": ("operations_per_second", 1e12),
    "tb_per_sec": ("bytes_per_second", 1e12),
    "sol_pct": ("roof_ratio", 1e-2),
}


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


def as_csv(*runs: Run) -> str:
    """With the time and the commit of each run, by which many runs become one table."""
    names = ("routine", "backend", "shape", "device_name", "gpu_uuid")
    header = ("schema", "time", "commit", "case", *names, "status", "median_us", "std_us", *RATES, "reason")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for run, one in [(of, one) for of in runs for one in entries(of)]:
        known = (getattr(one.identity, name) for name in names)
        figures = (one.status, *one.median_and_deviation, *one.rates.values(), one.reason)
        cells = (run.when.isoformat(), run.commit.id, one.name, *known, *figures)
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


def as_prometheus(run: Run) -> str:
    found = entries(run)
    seconds = [(one, one.row.median if one.row and math.isfinite(one.row.median) else None) for one in found]
    families = {
        "median_seconds": ("Device time of a call.", seconds),
        **{
            name: (
                f"{said} of it.",
                [(one, None if (rate := one.rates[said]) is None else rate * scale) for one in found],
            )
            for said, (name, scale) in BASE_UNITS.items()
        },
    }
    lines = list(_family("export_info", "What wrote this.", [({"schema": str(SCHEMA)}, 1)]))
    for name, (meaning, values) in families.items():
        lines += _family(name, meaning, [(one.labels, value) for one, value in values if value is not None])
    statuses = [({**one.labels, "status": one.status}, 1) for one in found]
    return "\n".join([*lines, *_family("status", "Of a case, measured or not.", statuses)]) + "\n"


def _family(name: str, meaning: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> Iterator[str]:
    """Gauges alone: node_exporter drops a whole file for a type that OpenMetrics knows and its parser does not."""
    whole = f"flashinfer_perf_{name}"
    yield f"# HELP {whole} {meaning}"
    yield f"# TYPE {whole} gauge"
    yield from (f"{whole}{_braced(labels)} {value!r}" for labels, value in samples)


def _braced(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def as_pytorch(run: Run) -> str:
    """A record for each metric, as vLLM and helion write them; details are text, as the database has them.

    Its pages round means to two digits, which microseconds stand and milliseconds do not.
    """
    found = entries(run)
    libraries = {name: {"version": str(known)} for name, known in run.libraries.items() if known is not None}
    records = []
    for one, row in ((one, one.row) for one in found if one.row):
        median, deviation = one.median_and_deviation
        metrics = {"median_us": median, **one.rates}
        identity, how = one.identity, {"status": one.status, "instrument": row.provenance.instrument}
        how |= {"std_us": f"{deviation:.4g}", "samples": str(row.stats.rounds)}
        device = {"device": str(identity.device).partition(":")[0], "arch": safe(str(identity.device_name))}
        of_case = {
            "benchmark": {"name": BENCHMARK, "dtype": str(row.throughput.flops_dtype or ""), "extra_info": device},
            "model": {
                "name": one.name,
                "type": safe(identity.routine or "own kernel"),
                "backend": safe(identity.backend or ""),
                "extra_info": {name: safe(str(value)) for name, value in row.params.items()},
            },
            "dependencies": libraries,
        }
        records += [
            {**of_case, "metric": {"name": name, "benchmark_values": [value], "extra_info": how}}
            for name, value in metrics.items()
            if value is not None
        ]
    without = {one.name: f"{one.status}: {one.reason}" for one in found if one.row is None}
    count = {"name": "cases", "benchmark_values": [len(without)], "extra_info": without}
    records.append({"benchmark": {"name": BENCHMARK}, "model": {"name": WITHOUT_TIME}, "metric": count})
    return json.dumps(records, indent=1, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[..., str]] = {
    "csv": as_csv,
    "github-action-benchmark": as_github_action_benchmark,
    "prometheus": as_prometheus,
    "pytorch": as_pytorch,
}
