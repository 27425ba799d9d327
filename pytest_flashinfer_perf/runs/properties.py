"""A row's numbers as pytest's `user_properties`, which JUnit XML and other reporters show."""

from __future__ import annotations

from pytest_flashinfer_perf.runs.row import Row

PREFIX = "perf_"
PICOSECONDS = 6  # digits of microseconds


def of(row: Row) -> list[tuple[str, object]]:
    """Nothing of what the row does not know."""
    work = row.throughput
    rates = {"tflops": work.tflops, "tb_per_sec": work.tb_per_sec, "sol_pct": work.sol_pct}
    shown = {"median_us": round(1e6 * row.median, PICOSECONDS), **rates, "status": row.status}
    return [(f"{PREFIX}{name}", value) for name, value in shown.items() if value is not None]


def put(row: Row, into: list[tuple[str, object]]) -> None:
    """Instead of those of an earlier attempt."""
    into[:] = [*(known for known in into if not known[0].startswith(PREFIX)), *of(row)]
