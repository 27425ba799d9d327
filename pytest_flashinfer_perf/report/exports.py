"""A run for other tools: device medians in microseconds with their rates, what is noisy, and what has no time.

What each format has to look like: https://github.com/benchmark-action/github-action-benchmark#examples (a tool
`customSmallerIsBetter`), https://bencher.dev/docs/reference/bencher-metric-format/,
https://prometheus.io/docs/specs/om/open_metrics_spec/.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.report import runs
from pytest_flashinfer_perf.report.runs import Run
from pytest_flashinfer_perf.runs.formatting import counted
from pytest_flashinfer_perf.runs.properties import PICOSECONDS
from pytest_flashinfer_perf.runs.run_file import RunError

SCHEMA = 1
WITHOUT_TIME = "cases without a time"
RATES = ("tflops", "tb_per_sec", "sol_pct")


@dataclass(frozen=True)
class Entry:
    """A case under a name that no other has. `said` is its row, or why it has none."""

    name: str
    status: str
    said: Mapping[str, Any]

    @property
    def measured(self) -> bool:
        return "median" in self.said

    @property
    def microseconds(self) -> float:
        return round(1e6 * float(self.said["median"]), PICOSECONDS)

    @property
    def off(self) -> float:
        """The standard deviation of the samples, in microseconds."""
        return round(1e6 * float(self.said["std"]), PICOSECONDS)

    @property
    def labels(self) -> dict[str, str]:
        known = {name: self.said.get(name) for name in ("routine", "backend", "shape", "device_name")}
        return {"case": self.name, **{name: str(value) for name, value in known.items() if value is not None}}


def entries(run: Run) -> list[Entry]:
    """Rows first; RunError where there is none, which an empty file would hide."""
    if not run.rows:
        raise RunError(f"{run.name} has no row to export: {counted(len(run.unmeasured), 'case')} without a time")
    places = {runs.place(row) for row in run.rows}
    named: Counter[str] = Counter()
    found = []
    for said in (*run.rows, *run.unmeasured):
        where = f" on {said.get('device_name')} {runs.place(said)}" if len(places) > 1 and runs.place(said) else ""
        name = f"{said['case']}{where}"
        named[name] += 1
        nth = f" ({named[name]})" if named[name] > 1 else ""
        found.append(Entry(f"{name}{nth}", str(said.get("outcome") or said["status"]), said))
    return found


def as_csv(run: Run) -> str:
    names = ("routine", "backend", "shape", "device_name", "gpu_uuid")
    header = ("schema", "case", *names, "status", "median_us", "std_us", *RATES, "reason")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for one in entries(run):
        times = (one.microseconds, one.off) if one.measured else (None, None)
        known, rates = ([one.said.get(name) for name in some] for some in (names, RATES))
        writer.writerow((SCHEMA, one.name, *known, one.status, *times, *rates, one.said.get("reason")))
    return text.getvalue()


def as_github_action_benchmark(run: Run) -> str:
    """An entry needs a value: cases that have none are one entry more, the number of them, where smaller is better."""
    found = entries(run)
    without = [one for one in found if not one.measured]
    shown = [
        {
            "name": one.name,
            "unit": "us",
            "value": one.microseconds,
            "range": f"± {one.off:.4g} us",
            "extra": "\n".join(_facts(one)),
        }
        for one in found
        if one.measured
    ]
    reasons = "\n".join([f"schema {SCHEMA}", *(f"{one.name}: {one.status}: {one.said['reason']}" for one in without)])
    shown.append({"name": WITHOUT_TIME, "unit": "cases", "value": len(without), "extra": reasons})
    return json.dumps(shown, indent=1, allow_nan=False) + "\n"


def _facts(one: Entry) -> Iterator[str]:
    yield f"schema {SCHEMA}"
    yield f"status {one.status}"
    yield from (f"{name} {one.said[name]:.4g}" for name in RATES if one.said.get(name) is not None)
    yield f"device {one.said.get('device_name')}"


def as_bencher(run: Run) -> str:
    """A benchmark without measures is one that measured nothing."""
    found = entries(run)
    counts = Counter(one.status for one in found)
    whole: dict[str, dict[str, Any]] = {one.name: _measures(one) for one in found}
    said = {"schema": SCHEMA, "without-time": sum(not one.measured for one in found), "noisy": counts["noisy"]}
    whole["flashinfer-perf"] = {name: {"value": value} for name, value in said.items()}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def _measures(one: Entry) -> dict[str, Any]:
    if not one.measured:
        return {}
    median, off = one.microseconds, one.off
    time = {"value": median, "lower_value": max(0.0, median - off), "upper_value": median + off}
    rates = {name.replace("_", "-"): {"value": one.said[name]} for name in RATES if one.said.get(name) is not None}
    return {"median-us": time, **rates, "ok": {"value": int(one.status == "ok")}}


def as_openmetrics(run: Run) -> str:
    found = entries(run)
    measured = [one for one in found if one.measured]
    families = {
        "median_microseconds": ("device time of a call", [(one, one.microseconds) for one in measured]),
        **{name: (f"{name} of it", _known(measured, name)) for name in RATES},
    }
    lines = ["# TYPE flashinfer_perf_export info", "# HELP flashinfer_perf_export What wrote this."]
    lines.append(f"flashinfer_perf_export_info{_braced({'schema': str(SCHEMA)})} 1")
    for name, (meaning, values) in families.items():
        lines += _family(name, meaning, [(one.labels, value) for one, value in values])
    lines += _family(
        "status", "of a case, measured or not", [({**one.labels, "status": one.status}, 1) for one in found]
    )
    return "\n".join([*lines, "# EOF"]) + "\n"


def _known(measured: Iterable[Entry], name: str) -> list[tuple[Entry, float]]:
    return [(one, float(one.said[name])) for one in measured if one.said.get(name) is not None]


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
    "bencher": as_bencher,
    "openmetrics": as_openmetrics,
}
