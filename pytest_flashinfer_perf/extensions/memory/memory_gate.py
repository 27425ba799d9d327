"""Memory in the gate. What is counted is exact: one byte more than is allowed is too much."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pytest_flashinfer_perf.api import FlashinferPerfError, Quantity, Row, match, thresholds
from pytest_flashinfer_perf.extensions.memory.memory import UNITS, of, size

NOT_WRITTEN = "its rows do not say what memory it takes, as those of a GPU with --perf-memory do"
BYTES = re.compile(r"(\d+(?:\.\d+)?) *(B|KiB|MiB|GiB)")
LEFT = "leaves"


def number_of_bytes(value: Any, where: str) -> float:
    parsed = BYTES.fullmatch(value.strip()) if isinstance(value, str) else None
    if parsed is None:
        raise FlashinferPerfError(f'{where}: must be a size, as in "1 MiB" or "0 B", got {value!r}')
    return float(parsed[1]) * UNITS[parsed[2]]


@dataclass(frozen=True)
class MemoryLimits:
    """The limit of `[thresholds]` for memory, which has none unless the settings file sets one."""

    more_memory: Annotated[float | None, number_of_bytes] = None


def broken(case: match.ComparedCase, limits: MemoryLimits) -> Iterator[thresholds.Broken]:
    """What this run takes more of than is allowed, by the process that takes most; a leak never is."""
    if limits.more_memory is None or not case.before:
        return
    limit = f"more_memory = {size(limits.more_memory)}"
    before, after = ([figures(row) for row in side] for side in (case.before, case.after))
    if not all((*before, *after)):
        yield thresholds.Broken(f"{limit}: {NOT_WRITTEN}", unknown=True)
        return
    for what in after[0]:
        was, now = (max(one[what] for one in side) for side in (before, after))
        if now - was > (0 if LEFT in what else limits.more_memory):
            yield thresholds.Broken(f"{limit}: {what} {size(now)}, {size(now - was)} more")


def figures(row: Row) -> dict[str, float]:
    """What is compared, by the words that say so; nothing if it was not counted."""
    memory = of(row)
    if memory is None or memory.call.peak_bytes is None:
        return {}
    plan = (memory.plan.peak_bytes, memory.plan.leak) if memory.plan else (None, None)
    words = ("a call takes", "it holds", "a plan takes", f"each call {LEFT}", f"each plan {LEFT}")
    counted = (memory.call.peak_bytes, memory.held_bytes, plan[0], memory.call.leak, plan[1])
    return {what: figure or 0 for what, figure in zip(words, counted, strict=True)}


QUANTITY = Quantity(limits=MemoryLimits, broken=broken)
