"""Judge the sum of a model's step, or of traffic: its change between two runs, and a step's limits.

The gate gives the verdicts of all cases; of these are made the times of each problem, and how far each may be off.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pytest_flashinfer_perf.api import Row, Run, effects, formatting, share, thresholds, verdict
from pytest_flashinfer_perf.extensions.models.budget import USABLE, ProblemKey, key_of, keys_of
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan, plan_of

MOST_NAMED = 5


@dataclass(frozen=True)
class StepLimits:
    """The limits of `[models]` for the sum of a step; None for no limit."""

    slower_step: Annotated[float | None, share] = None
    max_step_us: Annotated[float | None, thresholds.number] = None


class TimedCase(NamedTuple):
    """A case's seconds on both sides; `unsure` is how far off they may be, as a share, None if it is not compared."""

    before: float | None = None
    after: float | None = None
    unsure: float | None = None


Cases = Mapping[ProblemKey, Sequence[TimedCase]]
Timed = Sequence[tuple[str, TimedCase]]  # with the names of kernels


def sums(
    cases: Sequence[verdict.Judged], head: Sequence[Run], limits: Mapping[str, thresholds.Globs]
) -> tuple[Sequence[verdict.RunSum], Sequence[str]]:
    """The sums of each model and recording that this run has, and sentences on globs that fit none of them."""
    plans = {plan.name: plan for run in head if (plan := plan_of(run))}.values()
    timed = _timed_cases(cases)
    idle = limits["models"].without_match([plan.name for plan in plans if plan.traffic is None])
    sums_of_plans = [
        judged(plan, timed, limits) if plan.traffic is None else judged_traffic(plan, timed) for plan in plans
    ]
    return sums_of_plans, [f"[models] {glob!r} fits no model of which this run has a step" for glob in idle]


# The times of kernels, from those of cases.


def _timed_cases(cases: Sequence[verdict.Judged]) -> Cases:
    timed: dict[ProblemKey, list[TimedCase]] = defaultdict(list)
    for one in cases:
        timed_case = TimedCase(_seconds(one.case.before), _seconds(one.case.after), _unsure(one))
        for key in {key for row in one.case.rows for key in keys_of(row.params)}:  # releases name axes otherwise
            timed[key].append(timed_case)
    return timed


def _seconds(rows: Sequence[Row]) -> float | None:
    """The median over processes, of answers that are right."""
    medians = [row.median for row in rows if row.status in USABLE]
    return statistics.median(medians) if medians else None


def _unsure(one: verdict.Judged) -> float | None:
    """The share by which a case's time may be off, gaps included; None for a case that is not compared."""
    of_time = (effects.Domain.TIME, effects.Domain.BUSY, effects.Domain.GAPS)
    parts = [effect for effect in one.effects if effect.replicates.domain in of_time]
    return math.fsum(part.bound(1) - part.change for part in parts) if parts else None


def _timed(kernel: StepKernel, cases: Cases) -> TimedCase:
    """The time of all calls of one kernel, by the fastest backend of each side."""
    timed_cases = [one for wanted in kernel.problems for one in cases.get(key_of(wanted), ())]
    before = min((one for one in timed_cases if one.before), key=lambda one: one.before or 0.0, default=TimedCase())
    after = min((one for one in timed_cases if one.after), key=lambda one: one.after or 0.0, default=TimedCase())
    shares = [one.unsure for one in (before, after) if one.unsure is not None]
    was, now = (side and kernel.count * side for side in (before.before, after.after))
    return TimedCase(was, now, max(shares) if len(shares) == 2 else None)


def _whole(kernels: Timed) -> float:
    return sum(timed.after or 0.0 for _, timed in kernels)


def _change(kernels: Timed) -> tuple[float | None, float, list[str]]:
    """The change of the kernels that both sides have, whose errors may all go in one direction."""
    compared = [(t.before, t.after, t.unsure) for _, t in kernels if t.before and t.after and t.unsure is not None]
    apart = [name for name, t in kernels if t.after and (not t.before or t.unsure is None)]
    if not compared:
        return None, 0.0, apart
    base = sum(before for before, _, _ in compared)
    unsure = sum(share * after for _, after, share in compared)
    return sum(after for _, after, _ in compared) / base - 1, unsure / base, apart


# What a step is held to.


def _worse(limits: StepLimits, kernels: Timed) -> Iterator[str]:
    change, unsure, _ = _change(kernels)
    most, took = limits.max_step_us, 1e6 * _whole(kernels)
    if most is not None and took > most:
        yield f"a step takes {took:.4g} us, more than max_step_us {most:g}"
    if limits.slower_step is not None and change is not None and change > limits.slower_step and change > unsure:
        yield f"a step is {change:.2%} slower, more than slower_step {limits.slower_step:.2%}"


def _unknown(limits: StepLimits, kernels: Timed) -> Iterator[str]:
    unmeasured = [name for name, timed in kernels if timed.after is None]
    if limits.max_step_us is not None and unmeasured:
        yield f"max_step_us of a step cannot be judged: no usable row of {_listed(unmeasured)}"
    if limits.slower_step is not None and _change(kernels)[0] is None:
        yield "slower_step of a step cannot be judged: nothing of it was compared"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def judged(plan: StepPlan, cases: Cases, limits: Mapping[str, thresholds.Globs]) -> verdict.RunSum:
    """The step of a model."""
    own = limits["models"].of_kind(StepLimits, plan.name)
    kernels = [(kernel.name, _timed(kernel, cases)) for kernel in plan.kernels if not kernel.gap]
    left_out = [kernel.name for kernel in plan.gaps] + [name for name, timed in kernels if timed.after is None]
    without = f", without {_listed(left_out)}" if left_out else ""
    sentences = [f"{formatting.duration(_whole(kernels))}{without}"]
    change, unsure, apart = _change(kernels)
    if change is not None:
        beside = f", {_listed(apart)} left out" if apart else ""
        sentences.append(f"{change:+.2%} +- {unsure:.2%} of GPU time{beside}")
    worse = tuple(_worse(own, kernels))
    unknown = () if worse else tuple(_unknown(own, kernels))
    return verdict.RunSum(plan.name, f"step of {plan.name}", "; ".join(sentences), worse, unknown)


def judged_traffic(plan: StepPlan, cases: Cases) -> verdict.RunSum:
    """The calls of a recording, which begin with the change of the whole, and then name what made it."""
    seconds = plan.traffic.seconds if plan.traffic else 0.0
    timed_kernels = [(kernel, _timed(kernel, cases)) for kernel in plan.kernels]
    kernels = [(kernel.name, timed) for kernel, timed in timed_kernels if not kernel.gap]
    parts: defaultdict[str, list[tuple[str, TimedCase]]] = defaultdict(list)
    for name, timed in kernels:
        parts[name].append((name, timed))
    change, unsure, _ = _change(kernels)
    sentences = [] if change is None else [f"{change:+.2%} +- {unsure:.2%} of GPU time", *_by_api(parts)]
    calls = sum(kernel.count for kernel, _ in timed_kernels)
    measured = sum(kernel.count for kernel, timed in timed_kernels if timed.after is not None)
    whole = _whole(kernels)
    took = f"{1e3 * whole / seconds:.4g} ms per second" if seconds else formatting.duration(whole)
    sentences.append(f"{took} in {measured / calls:.1%} of the calls" if measured < calls else took)
    return verdict.RunSum(plan.name, "your traffic", "; ".join(sentences), leads=True)


def _by_api(parts: Mapping[str, Timed]) -> Iterator[str]:
    """The APIs that surely changed, by what each adds to the change of the sum."""
    base, changes = sum(timed.before or 0.0 for part in parts.values() for _, timed in part), []
    for name, part in parts.items():
        change, unsure, _ = _change(part)
        share = sum(timed.before or 0.0 for _, timed in part) / base
        if change is not None and abs(change) > unsure:
            changes.append((share * change, f"{name} {change:+.2%} +- {unsure:.2%}, which is {share * change:+.2%}"))
    changes.sort(key=lambda one: -abs(one[0]))
    yield from (sentence for _, sentence in changes[:MOST_NAMED])
    if rest := changes[MOST_NAMED:]:
        yield f"{len(rest)} other APIs together {sum(share for share, _ in rest):+.2%}"


SUMS = verdict.Summing({"models": StepLimits}, sums)
