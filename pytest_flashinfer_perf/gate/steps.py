"""Compare the sum of a model's step between two runs, and apply the limits of the settings file."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import effects, tails
from pytest_flashinfer_perf.gate.step_thresholds import StepThreshold
from pytest_flashinfer_perf.gate.verdict import Judged, JudgedStep, Rules
from pytest_flashinfer_perf.models import budget
from pytest_flashinfer_perf.models.budget import Problem
from pytest_flashinfer_perf.runs.formatting import duration
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run
from pytest_flashinfer_perf.runs.step import ModelStep, StepKernel

ByProblem = Mapping[Problem, Sequence[Judged]]


@dataclass(frozen=True)
class _Kernel:
    """A step's calls of one kernel, by the fastest backend of each side; `unsure` is in seconds, as those are."""

    name: str
    before: float | None
    after: float | None
    unsure: float | None


def judged(cases: Sequence[Judged], head: Sequence[Run], rules: Rules) -> tuple[JudgedStep, ...]:
    """Compare each model's step of which this run has one."""
    by_problem: dict[Problem, list[Judged]] = defaultdict(list)
    for one in cases:
        for row in one.case.rows[:1]:
            by_problem[budget.problem(row.params)].append(one)
    steps = {run.step.name: run.step for run in head if run.step is not None}
    return tuple(_step(step, by_problem, rules.steps.of(step.name)) for step in steps.values())


def _step(step: ModelStep, by_problem: ByProblem, asked: StepThreshold) -> JudgedStep:
    kernels = [_kernel(kernel, by_problem) for kernel in step.kernels if not kernel.gap]
    whole = sum(kernel.after or 0.0 for kernel in kernels)
    unmeasured = [kernel.name for kernel in kernels if kernel.after is None]
    left_out = [kernel.name for kernel in step.kernels if kernel.gap] + unmeasured
    sentences = [f"{duration(whole)}{f', without {_listed(left_out)}' if left_out else ''}"]
    change, unsure, apart = _change(kernels)
    if change is not None:
        beside = f", {_listed(apart)} left out" if apart else ""
        sentences.append(f"{change:+.2%} +- {unsure:.2%} of GPU time{beside}")
    worse = tuple(_worse(asked, whole, change, unsure))
    unknown = tuple(_unknown(asked, unmeasured, change)) if not worse else ()
    return JudgedStep(step.name, "; ".join(sentences), worse, unknown)


def _kernel(kernel: StepKernel, by_problem: ByProblem) -> _Kernel:
    found = [one for problem in kernel.problems for one in by_problem.get(budget.problem(problem), ())]
    before = _fastest((_seconds(one.case.before), one) for one in found)
    after = _fastest((_seconds(one.case.after), one) for one in found)
    times = [side and kernel.count * side[0] for side in (before, after)]
    relative = [share for side in (before, after) if side and (share := _unsure(side[1])) is not None]
    unsure = max(relative) * times[1] if times[1] and len(relative) == 2 else None
    return _Kernel(kernel.name, times[0], times[1], unsure)


def _fastest(timed: Iterable[tuple[float | None, Judged]]) -> tuple[float, Judged] | None:
    return min(((s, one) for s, one in timed if s), key=lambda pair: pair[0], default=None)


def _seconds(rows: Sequence[Row]) -> float | None:
    """The median over processes, of answers that are right."""
    medians = [row.median for row in rows if row.status in budget.USABLE]
    return statistics.median(medians) if medians else None


def _unsure(one: Judged) -> float | None:
    """How far its time may be off, relatively; None of a case that is not compared."""
    effect = one.effect_in("time")
    return None if effect is None else tails.beyond(effects.RISK, effect.noise.df) * effect.error


def _change(kernels: Sequence[_Kernel]) -> tuple[float | None, float, list[str]]:
    """Of the kernels that both sides have; kernels of one process may all be off in the same direction."""
    both = [(k.before, k.after, k.unsure) for k in kernels if k.before and k.after and k.unsure is not None]
    apart = [k.name for k in kernels if k.after and (not k.before or k.unsure is None)]
    if not both:
        return None, 0.0, apart
    base = sum(before for before, _, _ in both)
    return sum(after for _, after, _ in both) / base - 1, sum(unsure for _, _, unsure in both) / base, apart


def _worse(asked: StepThreshold, whole: float, change: float | None, unsure: float) -> Iterator[str]:
    if asked.max_step_us is not None and 1e6 * whole > asked.max_step_us:
        yield f"a step takes {1e6 * whole:.1f} us, more than max_step_us {asked.max_step_us:g}"
    if asked.slower_step is not None and change is not None and change > asked.slower_step and change > unsure:
        yield f"a step is {change:.2%} slower, more than slower_step {asked.slower_step:.2%}"


def _unknown(asked: StepThreshold, unmeasured: Sequence[str], change: float | None) -> Iterator[str]:
    if asked.max_step_us is not None and unmeasured:
        yield f"max_step_us cannot be judged: no usable row of {_listed(unmeasured)}"
    if asked.slower_step is not None and change is None:
        yield "slower_step cannot be judged: no kernel of the step was compared"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(names))
