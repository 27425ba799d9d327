"""Cost: the work a call really needs, and what share of the device's roof it reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Bound = Literal["compute", "memory"]


@dataclass(frozen=True)
class Cost:
    """Floating-point operations in `dtype`, and bytes that must cross the device's memory once."""

    flops: float
    bytes: float
    dtype: str


@dataclass(frozen=True)
class Peaks:
    """What a device can do: bytes per second, and operations per second by dtype."""

    bytes_per_s: float
    flops_per_s: dict[str, float]
    source: str


@dataclass(frozen=True)
class Roofline:
    """How close a time is to the least that the roof allows, and which side of the roof binds."""

    sol_pct: float
    bound: Bound


def roofline(cost: Cost, seconds: float, peaks: Peaks | None) -> Roofline | None:
    """None where the device's peak for this dtype is unknown: a share of an unknown roof is not a number."""
    if peaks is None or (cost.flops and cost.dtype not in peaks.flops_per_s):
        return None
    compute = cost.flops / peaks.flops_per_s[cost.dtype] if cost.flops else 0.0
    memory = cost.bytes / peaks.bytes_per_s
    least = max(compute, memory)
    return Roofline(100.0 * least / seconds, "compute" if compute > memory else "memory")


def best_of(measured: Peaks | None, datasheet: Peaks | None) -> Peaks | None:
    """The roof nothing can be above: the larger of what was measured and what the vendor states."""
    known = [p for p in (measured, datasheet) if p is not None]
    if not known:
        return None
    dtypes = {dtype for p in known for dtype in p.flops_per_s}
    flops = {d: max(p.flops_per_s.get(d, 0.0) for p in known) for d in dtypes}
    return Peaks(max(p.bytes_per_s for p in known), flops, "larger")
