"""Judge the sum of a model's step: its change between two runs, and the limits that the settings file gives it.

The gate gives the times of each problem on both sides, and how far each may be off; the judgement is this page's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_flashinfer_perf.models.budget import ProblemKey, key_of
from pytest_flashinfer_perf.rows.formatting import duration
from pytest_flashinfer_perf.rows.step import StepKernel, StepPlan


@dataclass(frozen=True)
class StepLimits:
    """The limits for the sum of a step; None for no limit."""

    slower_step: float | None = None
    max_step_us: float | None = None


class TimedCase(NamedTuple):
    """A case's seconds on both sides; `unsure` is how far off they may be, as a share, None if it is not compared."""

    before: float | None = None
    after: float | None = None
    unsure: float | None = None


@dataclass(frozen=True)
class JudgedStep:
    """The sum of a model's step: its time and change in a sentence, exceeded limits, and what cannot be judged."""

    model: str
    sentence: str
    worse: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Empty for a step within its limits, or without limits."""
        return "WORSE" if self.worse else "INVALID" if self.unknown else ""

    @property
    def line(self) -> str:
        beside = f"{self.verdict} " if self.verdict else ""
        return f"{beside}step of {self.model}: {'; '.join([self.sentence, *self.worse, *self.unknown])}"


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
