"""Cost: the minimal work of a call, and the share of the device's roof that its time reaches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from pytest_flashinfer_perf.runs.row import Bound
from pytest_flashinfer_perf.runs.run_file import Roof


@dataclass(frozen=True)
class Cost:
    """Floating-point operations in `dtype`, and bytes that must cross the device's memory once.

    `inferred` if the dtype was not stated and is taken from the inputs.
    """

    flops: float
    bytes: float
    dtype: str
    inferred: bool = False


@dataclass(frozen=True)
class Peaks(Roof):
    """The peak rates of a device."""

    def covers(self, cost: Cost) -> bool:
        return not cost.flops or cost.dtype in self.flops_per_s


@dataclass(frozen=True)
class Roofline:
    """The share of the roof that a time reaches, and whether compute or memory is the bound."""

    sol_pct: float
    bound: Bound


def roofline(cost: Cost, seconds: float, peaks: Peaks | None) -> Roofline | None:
    """The share of the roof; of the memory roof alone if no peak is known for the dtype, None without bytes as well."""
    if peaks is None or not (cost.bytes or (cost.flops and peaks.covers(cost))):
        return None
    memory = cost.bytes / peaks.bytes_per_s
    if not peaks.covers(cost):
        return Roofline(100.0 * memory / seconds, "memory?")
    compute = cost.flops / peaks.flops_per_s[cost.dtype] if cost.flops else 0.0
    return Roofline(100.0 * max(compute, memory) / seconds, "compute" if compute > memory else "memory")


def as_run(cost: Cost, seconds: float, limit: Peaks | None) -> Cost:
    """The cost with the dtype tf32 if fp32 inputs were multiplied faster than fp32 allows."""
    known = limit.flops_per_s if limit else {}
    if not (cost.inferred and cost.dtype == "float32" and {"float32", "tf32"} <= known.keys()):
        return cost
    return replace(cost, dtype="tf32") if cost.flops > known["float32"] * seconds else cost


def first_that_covers(cost: Cost, preferred: Sequence[Peaks]) -> Peaks | None:
    """The first roof that has the peak of this dtype, or else the first one."""
    return next((peaks for peaks in preferred if peaks.covers(cost)), preferred[0] if preferred else None)


def best_of(known: Collection[Peaks]) -> Peaks | None:
    """The roof that no result can exceed: for each rate the larger one of measurement and datasheet."""
    if not known:
        return None
    dtypes = {dtype for p in known for dtype in p.flops_per_s}
    flops = {d: max(p.flops_per_s.get(d, 0.0) for p in known) for d in dtypes}
    return Peaks(max(p.bytes_per_s for p in known), flops, "larger")
