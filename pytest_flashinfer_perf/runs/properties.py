"""What JUnit's XML and other reporters show of a row beside its test: pytest's `user_properties`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIX = "perf_"
PICOSECONDS = 6  # digits of microseconds
NAMES = ("tflops", "tb_per_sec", "sol_pct", "status")


def of(row: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Nothing of what the row does not know."""
    shown = {"median_us": round(1e6 * row["median"], PICOSECONDS), **{name: row[name] for name in NAMES}}
    return [(f"{PREFIX}{name}", value) for name, value in shown.items() if value is not None]


def put(row: Mapping[str, Any], into: list[tuple[str, object]]) -> None:
    """Instead of those of an earlier attempt."""
    into[:] = [*(said for said in into if not said[0].startswith(PREFIX)), *of(row)]
