"""A row's numbers as pytest's `user_properties`, which JUnit's XML and other reporters show."""

from __future__ import annotations

from pytest_flashinfer_perf.api import Row

PREFIX = "perf_"
PICOSECONDS = 6  # digits of microseconds


def of(row: Row) -> dict[str, object]:
    """The row's numbers by name, without those that it does not know."""
    work = row.throughput
    values = {
        "median_us": round(1e6 * row.median, PICOSECONDS),
        "tflops": work.tflops,
        "tb_per_sec": work.tb_per_sec,
        "sol_pct": work.sol_pct,
        "status": row.status,
    }
    return {PREFIX + name: value for name, value in values.items() if value is not None}


def put(row: Row, into: list[tuple[str, object]]) -> None:
    """Put the row's numbers among the properties, instead of those of an earlier attempt."""
    into[:] = [*(pair for pair in into if not pair[0].startswith(PREFIX)), *of(row).items()]
