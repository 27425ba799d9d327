"""Write runs as CSV: GPU medians in microseconds, rates, noisy cases, and cases without a time."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass

from pytest_flashinfer_perf.printing import safe, safe_lines
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.row import Identity, Row
from pytest_flashinfer_perf.rows.run_file import PICOSECONDS, Run, RunError, Unmeasured
from pytest_flashinfer_perf.rows.scatter import is_measured

SCHEMA = 1
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
