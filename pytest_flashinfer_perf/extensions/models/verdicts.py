"""Judge the sum of a model's step, or of traffic: its change between two runs, and the limits of the settings file.

The gate gives the verdicts of all cases; of these are made the times of each problem, and how far each may be off.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pytest_flashinfer_perf.api import Row, Run, effects, formatting, share, thresholds, verdict
from pytest_flashinfer_perf.extensions.models.budget import USABLE, ProblemKey, key_of, keys_of
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan, Traffic, plan_of


@dataclass(frozen=True)
class StepLimits:
    """The limits of `[models]` for the sum of a step; None for no limit."""

    slower_step: Annotated[float | None, share] = None
    max_step_us: Annotated[float | None, thresholds.number] = None


@dataclass(frozen=True)
class TrafficLimits:
    """The limits of `[traffic]` for the sum of the calls of a recording, or for those of one API; None for no limit."""

    slower: Annotated[float | None, share] = None
    max_ms_per_s: Annotated[float | None, thresholds.number] = None


class TimedCase(NamedTuple):
    """A case's seconds on both sides; `unsure` is how far off they may be, as a share, None if it is not compared."""

    before: float | None = None
    after: float | None = None
    unsure: float | None = None


Cases = Mapping[ProblemKey, Sequence[TimedCase]]


def sums(
    cases: Sequence[verdict.Judged], head: Sequence[Run], limits: Mapping[str, thresholds.Globs]
) -> tuple[Sequence[verdict.RunSum], Sequence[str]]:
    """Of each model and each recording that this run has; and the globs that fit none of them."""
    plans = {plan.name: plan for run in head if (plan := plan_of(run))}.values()
    timed, made = _timed_cases(cases), list[verdict.RunSum]()
    fit: dict[str, list[str]] = {"traffic": [], "models": []}
    for plan in plans:
        if plan.traffic is None:
            fit["models"].append(plan.name)
            made.append(judged(plan, timed, limits["models"].of_kind(StepLimits, plan.name)))
        else:
            fit["traffic"] += [SUM, *dict.fromkeys(kernel.name for kernel in plan.kernels if not kernel.gap)]
            of_name = functools.partial(limits["traffic"].of_kind, TrafficLimits)
            made.append(judged_traffic(plan, plan.traffic, timed, of_name))
    idle = ((section, glob) for section, names in fit.items() for glob in limits[section].without_match(names))
    return made, [f"[{section}] {glob!r} fits {FITS_NONE[section]}" for section, glob in idle]


def _timed_cases(cases: Sequence[verdict.Judged]) -> Cases:
    timed: dict[ProblemKey, list[TimedCase]] = defaultdict(list)
    for one in cases:
        found = TimedCase(_seconds(one.case.before), _seconds(one.case.after), _unsure(one))
        for key in {key for row in one.case.rows for key in keys_of(row.params)}:  # releases name axes otherwise
            timed[key].append(found)
    return timed


def _seconds(rows: Sequence[Row]) -> float | None:
    """The median over processes, of answers that are right."""
    medians = [row.median for row in rows if row.status in USABLE]
    return statistics.median(medians) if medians else None


def _unsure(one: verdict.Judged) -> float | None:
    """How far its time may be off, its gaps included, as a share; None of a case that is not compared."""
    parts = [
        effect
        for effect in one.effects
        if effect.seen.domain in (effects.Domain.TIME, effects.Domain.BUSY, effects.Domain.GAPS)
    ]
    return math.fsum(part.bound(1) - part.change for part in parts) if parts else None


# The step of a model.


def judged(plan: StepPlan, cases: Cases, limits: StepLimits) -> verdict.RunSum:
    kernels = [(kernel.name, _timed(kernel, cases)) for kernel in plan.kernels if not kernel.gap]
    whole = sum(timed.after or 0.0 for _, timed in kernels)
    unmeasured = [name for name, timed in kernels if timed.after is None]
    left_out = [kernel.name for kernel in plan.gaps] + unmeasured
    sentences = [f"{formatting.duration(whole)}{f', without {_listed(left_out)}' if left_out else ''}"]
    change, unsure, apart = _change(kernels)
    if change is not None:
        beside = f", {_listed(apart)} left out" if apart else ""
        sentences.append(f"{change:+.2%} +- {unsure:.2%} of GPU time{beside}")
    worse = tuple(_worse(limits, whole, change, unsure))
    unknown = tuple(_unknown(limits, unmeasured, change)) if not worse else ()
    return verdict.RunSum(plan.name, f"step of {plan.name}", "; ".join(sentences), worse, unknown)


def _timed(kernel: StepKernel, cases: Cases) -> TimedCase:
    """A step's calls of one kernel, by the fastest backend of each side."""
    found = [one for wanted in kernel.problems for one in cases.get(key_of(wanted), ())]
    before = min((one for one in found if one.before), key=lambda one: one.before or 0.0, default=TimedCase())
    after = min((one for one in found if one.after), key=lambda one: one.after or 0.0, default=TimedCase())
    shares = [one.unsure for one in (before, after) if one.unsure is not None]
    was, now = (side and kernel.count * side for side in (before.before, after.after))
    return TimedCase(was, now, max(shares) if len(shares) == 2 else None)


def _change(kernels: Sequence[tuple[str, TimedCase]]) -> tuple[float | None, float, list[str]]:
    """Of the kernels that both sides have; kernels of one process may all be off in the same direction."""
    compared = [(t.before, t.after, t.unsure) for _, t in kernels if t.before and t.after and t.unsure is not None]
    apart = [name for name, t in kernels if t.after and (not t.before or t.unsure is None)]
    if not compared:
        return None, 0.0, apart
    base = sum(before for before, _, _ in compared)
    unsure = sum(share * after for _, after, share in compared)
    return sum(after for _, after, _ in compared) / base - 1, unsure / base, apart


def _worse(limits: StepLimits, whole: float, change: float | None, unsure: float) -> Iterator[str]:
    if limits.max_step_us is not None and 1e6 * whole > limits.max_step_us:
        yield f"a step takes {1e6 * whole:.1f} us, more than max_step_us {limits.max_step_us:g}"
    if limits.slower_step is not None and change is not None and change > limits.slower_step and change > unsure:
        yield f"a step is {change:.2%} slower, more than slower_step {limits.slower_step:.2%}"


def _unknown(limits: StepLimits, unmeasured: Sequence[str], change: float | None) -> Iterator[str]:
    if limits.max_step_us is not None and unmeasured:
        yield f"max_step_us cannot be judged: no usable row of {_listed(unmeasured)}"
    if limits.slower_step is not None and change is None:
        yield "slower_step cannot be judged: no kernel of the step was compared"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))


# The calls of a recording, which begin with the change of the whole, and then name what made it.

SUM = "sum"  # by which limits name the whole
FITS_NONE = {
    "traffic": f"neither {SUM} nor an API of a recording that this run has",
    "models": "no model of which this run has a step",
}
MOST_NAMED = 5


def judged_traffic(
    plan: StepPlan, traffic: Traffic, cases: Cases, limits: Callable[[str], TrafficLimits]
) -> verdict.RunSum:
    found = [(kernel, _timed(kernel, cases)) for kernel in plan.kernels]
    kernels = [(kernel.name, timed) for kernel, timed in found if not kernel.gap]
    parts: defaultdict[str, list[tuple[str, TimedCase]]] = defaultdict(list)
    for name, timed in kernels:
        parts[name].append((name, timed))
    whole = sum(timed.after or 0.0 for _, timed in kernels)
    base = sum(timed.before or 0.0 for _, timed in kernels)
    change, unsure, _ = _change(kernels)
    sentences = [] if change is None else [f"{change:+.2%} +- {unsure:.2%} of GPU time", *_by_api(parts, base)]
    calls = sum(kernel.count for kernel, _ in found)
    measured = sum(kernel.count for kernel, timed in found if timed.after is not None)
    of_calls = f" in {measured / calls:.1%} of the calls" if measured < calls else ""
    sentences.append(f"{_of_time(whole, traffic)}{of_calls}")
    named = {SUM: kernels, **parts}
    worse = tuple(sentence for name, part in named.items() for sentence in _exceeded(name, part, traffic, limits(name)))
    unknown = [sentence for name, part in named.items() for sentence in _unjudged(name, part, limits(name))]
    return verdict.RunSum(
        plan.name, "your traffic", "; ".join(sentences), worse, () if worse else tuple(unknown), leads=True
    )


def _of_time(seconds: float, traffic: Traffic) -> str:
    return f"{_ms_per_s(seconds, traffic):.4g} ms per second" if traffic.seconds else formatting.duration(seconds)


def _ms_per_s(seconds: float, traffic: Traffic) -> float:
    return 1e3 * seconds / traffic.seconds if traffic.seconds else 0.0


def _by_api(parts: Mapping[str, Sequence[tuple[str, TimedCase]]], base: float) -> Iterator[str]:
    """The APIs that surely changed, by what each adds to the change of the sum."""
    found = []
    for name, part in parts.items():
        change, unsure, _ = _change(part)
        share = sum(timed.before or 0.0 for _, timed in part) / base
        if change is not None and abs(change) > unsure:
            found.append((share * change, f"{name} {change:+.2%} +- {unsure:.2%}, which is {share * change:+.2%}"))
    found.sort(key=lambda one: -abs(one[0]))
    yield from (sentence for _, sentence in found[:MOST_NAMED])
    if rest := found[MOST_NAMED:]:
        yield f"{len(rest)} other APIs together {sum(share for share, _ in rest):+.2%}"


def _exceeded(
    name: str, part: Sequence[tuple[str, TimedCase]], traffic: Traffic, limits: TrafficLimits
) -> Iterator[str]:
    change, unsure, _ = _change(part)
    took = _ms_per_s(sum(timed.after or 0.0 for _, timed in part), traffic)
    if limits.max_ms_per_s is not None and took > limits.max_ms_per_s:
        yield f"{name} takes {took:.4g} ms per second, more than max_ms_per_s {limits.max_ms_per_s:g}"
    if limits.slower is not None and change is not None and change > limits.slower and change > unsure:
        yield f"{name} is {change:.2%} slower, more than slower {limits.slower:.2%}"


def _unjudged(name: str, part: Sequence[tuple[str, TimedCase]], limits: TrafficLimits) -> Iterator[str]:
    if limits.max_ms_per_s is not None and any(timed.after is None for _, timed in part):
        yield f"max_ms_per_s of {name} cannot be judged: not all of its cases were measured"
    if limits.slower is not None and _change(part)[0] is None:
        yield f"slower of {name} cannot be judged: none of its cases was compared"


SUMS = verdict.Summing({"models": StepLimits, "traffic": TrafficLimits}, sums)
