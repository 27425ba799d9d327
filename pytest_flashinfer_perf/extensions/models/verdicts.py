"""Judge the sum of a model's step, or of traffic: its change between two runs, and the limits of the settings file.

The gate gives the times of each problem on both sides, and how far each may be off; the judgement is this page's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_flashinfer_perf.extensions.models.budget import ProblemKey, key_of
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan, Traffic
from pytest_flashinfer_perf.rows.formatting import duration


@dataclass(frozen=True)
class StepLimits:
    """The limits for the sum of a step; None for no limit."""

    slower_step: float | None = None
    max_step_us: float | None = None


@dataclass(frozen=True)
class TrafficLimits:
    """The limits for the sum of the calls of a recording, or for those of one API; None for no limit."""

    slower: float | None = None
    max_ms_per_s: float | None = None


class TimedCase(NamedTuple):
    """A case's seconds on both sides; `unsure` is how far off they may be, as a share, None if it is not compared."""

    before: float | None = None
    after: float | None = None
    unsure: float | None = None


@dataclass(frozen=True)
class JudgedStep:
    """The sum of a model's step, or of traffic: its time and change in a sentence, exceeded limits, and what cannot
    be judged.
    """

    model: str
    sentence: str
    worse: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()  # of traffic, those that were summed

    @property
    def is_traffic(self) -> bool:
        return bool(self.apis)

    @property
    def subject(self) -> str:
        return "your traffic" if self.is_traffic else f"step of {self.model}"

    @property
    def verdict(self) -> str:
        """Empty for a step within its limits, or without limits."""
        return "WORSE" if self.worse else "INVALID" if self.unknown else ""

    @property
    def line(self) -> str:
        beside = f"{self.verdict} " if self.verdict else ""
        return f"{beside}{self.subject}: {'; '.join([self.sentence, *self.worse, *self.unknown])}"


Cases = Mapping[ProblemKey, Sequence[TimedCase]]


def judged(plan: StepPlan, cases: Cases, limits: StepLimits) -> JudgedStep:
    kernels = [(kernel.name, _timed(kernel, cases)) for kernel in plan.kernels if not kernel.gap]
    whole = sum(timed.after or 0.0 for _, timed in kernels)
    unmeasured = [name for name, timed in kernels if timed.after is None]
    left_out = [kernel.name for kernel in plan.gaps] + unmeasured
    sentences = [f"{duration(whole)}{f', without {_listed(left_out)}' if left_out else ''}"]
    change, unsure, apart = _change(kernels)
    if change is not None:
        beside = f", {_listed(apart)} left out" if apart else ""
        sentences.append(f"{change:+.2%} +- {unsure:.2%} of GPU time{beside}")
    worse = tuple(_worse(limits, whole, change, unsure))
    unknown = tuple(_unknown(limits, unmeasured, change)) if not worse else ()
    return JudgedStep(plan.name, "; ".join(sentences), worse, unknown)


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
MOST_NAMED = 5


def judged_traffic(
    plan: StepPlan, traffic: Traffic, cases: Cases, limits: Callable[[str], TrafficLimits]
) -> JudgedStep:
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
    return JudgedStep(plan.name, "; ".join(sentences), worse, () if worse else tuple(unknown), tuple(parts))


def _of_time(seconds: float, traffic: Traffic) -> str:
    return f"{_ms_per_s(seconds, traffic):.4g} ms per second" if traffic.seconds else duration(seconds)


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
