"""A recording as cases with their weights: what is measured, in which order, and what is not, with its share.

The weights are a `StepPlan` (`models/step.py`), as those of a model's step: sum, verdict and report are made of both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flashinfer_perf.api import formatting, lines
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan, Traffic
from pytest_flashinfer_perf.extensions.traffic import clusters, recording, translate
from pytest_flashinfer_perf.extensions.traffic.clusters import Cluster, Weighed
from pytest_flashinfer_perf.extensions.traffic.problem import (
    SMALLEST_S,
    CallArguments,
    Effort,
    NoCaseError,
    PosedProblem,
    routine_of,
)
from pytest_flashinfer_perf.extensions.traffic.recording import RecordedCall, Recording
from pytest_flashinfer_perf.spec.case import Case

ON_HOST = ("__init__", "plan", "fast_decode_plan")  # functions of wrappers


@dataclass
class CallsWithoutCase:
    """Calls of one API that nothing measures, for one reason."""

    api: str
    reason: str
    calls: int = 0
    seconds: float = 0.0  # an estimate, by the bytes of their arguments


@dataclass(frozen=True)
class Translated:
    """All calls of a recording: those with a case, and those without."""

    weighed: tuple[Weighed, ...]
    without: tuple[CallsWithoutCase, ...]


@dataclass(frozen=True)
class MeasuredTraffic:
    """What a session measures of a recording, the heaviest first, and the plan that sums it up."""

    entries: tuple[lines.Entry, ...]
    plan: StepPlan


@functools.cache
def of_file(path: Path, backends: tuple[str, ...] = ()) -> MeasuredTraffic:
    """Raises RecordingError for a file that is none."""
    return of(recording.read(path), path.name, backends)


def of(recorded: Recording, name: str, backends: tuple[str, ...] = ()) -> MeasuredTraffic:
    """By the backends of the recording, or by others: of these the fastest counts. What plans, runs on the host."""
    on_gpu = tuple(call for call in recorded.calls if call.api.rpartition(".")[2] not in ON_HOST)
    recorded = replace(recorded, calls=on_gpu)
    translated = translate_all(recorded.calls)
    all_clusters = clusters.clustered(translated.weighed)
    measured = [(cluster, _cases(cluster.leader.problem, backends)) for cluster in all_clusters]
    kernels = [_kernel(cluster, cases) for cluster, cases in measured]
    kernels += [_gap(one.api, one.calls, one.reason) for one in translated.without]
    of_all = sum(call.count for call in recorded.calls)
    facts = Traffic(seconds=recorded.head.seconds)
    title = f"{name}: {of_all:,} calls in {recorded.head.seconds:.1f} s"
    said = tuple(_coverage(name, all_clusters, translated, recorded))
    plan = StepPlan(name=name, title=title, kernels=tuple(kernels), coverage=said, traffic=facts)
    return MeasuredTraffic(tuple(_entries(name, measured, translated.without, of_all)), plan)


# From calls to problems.


def translate_all(calls: Iterable[RecordedCall]) -> Translated:
    weighed: dict[tuple[object, ...], Weighed] = {}
    without: dict[tuple[str, str], CallsWithoutCase] = {}
    for call in calls:
        for x, count in _samples(call):
            api = translate.short(call.api)
            try:
                posed = translate.problem(x)
            except NoCaseError as error:
                reason = without.setdefault((api, str(error)), CallsWithoutCase(api, str(error)))
                reason.calls, reason.seconds = reason.calls + count, reason.seconds + count * Effort(x.nbytes).seconds
                continue
            key = (api, *posed.fixed, *sorted(posed.params.items(), key=str))
            weighed[key] = Weighed(api, posed, count + (weighed[key].calls if key in weighed else 0))
    return Translated(tuple(weighed.values()), tuple(without.values()))


def _samples(call: RecordedCall) -> Iterator[tuple[CallArguments, int]]:
    """Each sample, with the calls that it stands for: all of them together are exactly those that were counted."""
    kept = [sample for sample in call.samples if sample] or (None,)
    each, more = divmod(call.count, len(kept))
    for nth, sample in enumerate(kept):
        if count := each + (nth < more):
            yield CallArguments(call, sample), count


# From problems to cases, and to the parts of the sum.


def _cases(problem: PosedProblem, backends: Sequence[str]) -> list[Case]:
    routine = routine_of(problem.routine)
    of_routine = (routine.backend_named(name) for name in backends or (problem.backend,))
    return [problem.case(name) for name in dict.fromkeys(one.name for one in of_routine if one is not None)]


def _kernel(cluster: Cluster, cases: Sequence[Case]) -> StepKernel:
    """The kernel that stands for a cluster; with one backend, rows of other backends do not count."""
    problem, api = cluster.leader.problem, cluster.leader.api
    if not cases:
        return _gap(api, cluster.calls, f"{problem.routine} has none of the backends that are asked for")
    only = {"backend": cases[0].backend_name} if len(cases) == 1 else {}
    step_problem = {"routine": problem.routine, **only, **problem.params}
    shape = f"{problem.routine}/{cases[0].shape.id}"
    return StepKernel(name=api, count=cluster.calls, problems=(step_problem,), cases=(shape,))


def _gap(api: str, calls: int, reason: str) -> StepKernel:
    return StepKernel(name=api, count=calls, gap=reason)


def _entries(
    name: str, measured: Iterable[tuple[Cluster, list[Case]]], without: Iterable[CallsWithoutCase], calls: int
) -> Iterator[lines.Entry]:
    """A case once, whichever calls it stands for; then what has none, as entries that skip."""
    cases = {(one.routine.name, one.backend_name, one.params): one for _, of_one in measured for one in of_one}
    entries = [lines.Entry(f"{case.routine.name}[{case.id}]", case, where=name) for case in cases.values()]
    for one in without:
        sentence = f"{one.api}, {one.calls / calls:.1%} of the calls: {one.reason}"
        entries.append(lines.Entry(f"without-a-case[{one.api}]", missing=sentence, where=name))
    yield from lines.numbered(entries)


def _coverage(name: str, all_clusters: Sequence[Cluster], translated: Translated, recorded: Recording) -> Iterator[str]:
    """The first line has the shares of calls and of estimated time; the others what the sum does not say, and why."""
    calls = max(1, sum(call.count for call in recorded.calls))
    whole = sum(one.seconds for one in all_clusters) + sum(one.seconds for one in translated.without) or SMALLEST_S
    of_calls, of_time = sum(one.calls for one in all_clusters) / calls, sum(one.seconds for one in all_clusters) / whole
    cases = (
        f"{formatting.counted(len(all_clusters), 'case')} for {of_calls:.1%} of the calls, {of_time:.1%} of their time"
    )
    yield f"{name}: {cases} as it is estimated"
    yield f"  alike calls share a case: their sum is within {clusters.error(all_clusters):.2%}"
    for one in sorted(translated.without, key=lambda one: -one.calls):
        yield f"  without a case: {one.api} ({one.calls / calls:.1%} of the calls): {one.reason}"
    if recorded.head.dropped:
        yield f"  not recorded: {formatting.counted(recorded.head.dropped, 'call')}"
