"""The contest of one case: every tactic is checked, then timed in rounds; then the ways to choose are looked at.

A way is how a tactic comes to be used: FlashInfer's default, a fresh tune in a process of its own, a cache file. What
a way chooses stays in the race to its end, so that its regret is known.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pytest_flashinfer_perf.config.settings import Measuring
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.gate import noise
from pytest_flashinfer_perf.kernel_timing import graphs, instruments, placements, stopping
from pytest_flashinfer_perf.kernel_timing.cupti import attached
from pytest_flashinfer_perf.kernel_timing.instruments import INSTRUMENTS
from pytest_flashinfer_perf.kernel_timing.run import Bench
from pytest_flashinfer_perf.kernel_timing.target import Restore, Target
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measurement.autotune import Choice
from pytest_flashinfer_perf.measurement.fingerprint import Fingerprint
from pytest_flashinfer_perf.measurement.one_case import Prepared
from pytest_flashinfer_perf.measurement.verification import NOT_KEPT, CheckResult, Examination
from pytest_flashinfer_perf.tuner import tactics
from pytest_flashinfer_perf.tuner.race import Race, Timed, UnfitError
from pytest_flashinfer_perf.tuner.sets import Field
from pytest_flashinfer_perf.tuner.tactics import Question, Tactic

MOST_OF_ONE = 8  # of the best answers to one question that are combined with those to another


class DeviceLostError(FlashinferPerfError):
    """A tactic left the GPU unusable for this process."""


@dataclass(frozen=True)
class Ways:
    """Tactics by the way that they were chosen, and the cache file that makes FlashInfer choose them again."""

    tactics: Mapping[str, Tactic]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Contest:
    """A case that is ready to run, and the tactics that it offers by name; `starts` is told whose turn it is."""

    prepared: Prepared
    bench: Bench
    starts: Callable[[str], None]
    crashed: Mapping[str, str] = field(default_factory=dict)
    tactics: dict[str, Tactic] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    examination: Examination = field(init=False)
    restore: Restore = field(init=False)

    def __post_init__(self) -> None:
        self.restore = Restore(tuple((one, one.clone()) for one in self.target.changed(self.target.args)), 1)
        self.examination = Examination(self.target, self.prepared.expected, self.device, Fingerprint(self.target))

    @property
    def target(self) -> Target:
        return self.prepared.target

    @property
    def device(self) -> Device:
        return self.bench.device

    def known(self, more: Sequence[Tactic]) -> list[str]:
        self.tactics.update((tactic.name, tactic) for tactic in more)
        return [tactic.name for tactic in more]

    def rounds(self) -> Iterator[Timed]:
        """Each round has the call at other addresses, the same for all tactics, as long as there is memory for it."""
        free, made = self.device.free_bytes(), [self.target]
        while True:
            if placements.fits(self.target, free, self.device.free_bytes(), len(made) - 1):
                made.append(self.target.elsewhere())
            yield partial(self._timed, made[-1])

    def _timed(self, placed: Target, name: str) -> float:
        if name in self.crashed:
            raise UnfitError("fails", self.crashed[name])
        self.starts(name)
        try:
            with tactics.using(self.tactics[name]):
                if name not in self.checked:
                    self._examine(name)
                timed = self.bench.timed(placed, stopping.CALLS, stopping.WARMUP)
                returned = NOT_KEPT if self.bench.cuda_graph else timed.work.last.returned
                self._fit(self.examination.last(placed, returned))
        except UnfitError:
            raise
        except Exception as error:
            self._verify_alive(error)
            first = str(error).partition("\n")[0]
            raise UnfitError("fails", f"{type(error).__name__}: {first}") from error
        return timed.placement.median

    def _examine(self, name: str) -> None:
        self.restore()
        self._fit(self.examination.first())
        self.restore()
        self.checked.add(name)

    def _fit(self, result: CheckResult) -> None:
        if result.faults:
            raise UnfitError("wrong", result.faults[0].partition("\n")[0])

    def _verify_alive(self, error: Exception) -> None:
        try:
            self.device.synchronize()
        except RuntimeError:
            raise DeviceLostError(str(error)) from error

    def kernels(self, call: Callable[[], object]) -> tuple[str, ...] | None:
        """The kernels that a call launches, in their order; None where CUPTI cannot see them."""
        if not self.device.is_gpu or INSTRUMENTS["cupti"].missing(self.device):
            return None
        from cupti import cupti

        with attached(cupti, self.device.synchronize) as recorder:
            return tuple(one.name for one in sorted(recorder.of(call), key=lambda one: one.start))


@dataclass(frozen=True)
class Searched:
    """What was raced, how the answers to several questions were combined, and all lanes."""

    race: Race
    field: Field
    sentence: str


def search(contest: Contest, asked: Sequence[Question], ways: Ways, budget: float) -> Searched:
    """Race all answers to one question. To several: those to each with the others' defaults, then the best combined."""
    start, base = time.monotonic(), tactics.default(asked)
    gc.collect()  # as before any capture, see `graphs.capture`
    race = Race(contest.known(list(ways.tactics.values())), contest.rounds(), lambda: True, _tick(contest.bench))
    stages = len(asked) + (len(asked) > 1)

    def until(stage: int) -> Callable[[], bool]:
        return lambda: time.monotonic() - start < budget * stage / stages

    best: dict[str, Sequence[Choice]] = {}
    for nth, question in enumerate(asked, start=1):
        offered = tactics.product(base, {question.op: question.choices})
        race.run(contest.known(offered), until(nth))
        best[question.op] = _best_of(race, question, offered)
    if len(asked) > 1:
        race.run(contest.known(tactics.product(base, best)), until(stages))
    return Searched(race, race.field, _sentence(asked, best))


def _best_of(race: Race, question: Question, offered: Sequence[Tactic]) -> list[Choice]:
    """The answers that are left, the fastest first."""
    left = [one for one in offered if race.lanes[one.name].times and not race.lanes[one.name].state]
    left.sort(key=lambda one: statistics.median(race.lanes[one.name].times.values()))
    return [dict(one.answers)[question.op] for one in left[:MOST_OF_ONE]] or [question.default]


def _sentence(asked: Sequence[Question], best: Mapping[str, Sequence[Choice]]) -> str:
    if len(asked) == 1:
        return f"all {len(asked[0].choices)} tactics"
    each = ", then ".join(f"{len(one.choices)} of {one.op} with the others' defaults" for one in asked)
    combined = " x ".join(str(len(choices)) for choices in best.values())
    return f"{each}, then the best of each combined ({combined}): each is taken to cost the same beside any other"


def _tick(bench: Bench) -> float:
    return noise.TICK_S if bench.instrument.name == "cupti" else 0.0


def bench_of(prepared: Prepared, measuring: Measuring, device: Device) -> Bench:
    chosen = instruments.choose(measuring.instrument, device)
    return Bench(chosen.instrument, measuring, device, prepared.cuda_graph)


def fidelity(contest: Contest, ways: Ways) -> dict[str, dict[str, bool | None]]:
    """Whether what a way replays is the tactic that was timed, by FlashInfer's answer, its kernels, and in a graph."""
    return {way: _replayed(contest, way, tactic, ways.files.get(way)) for way, tactic in ways.tactics.items()}


def _replayed(contest: Contest, way: str, tactic: Tactic, cache: str | None) -> dict[str, bool | None]:
    if cache is None and way != "default":
        return {}
    answer = tactics.chosen(contest.target, cache=cache)
    seen: dict[str, bool | None] = {"answer": answer.name == tactic.name}
    gc.collect()  # of the graphs that the tuner left behind
    eager = contest.kernels(contest.target)
    if eager is None:
        return {**seen, "eager": None, "graph": None}
    replay = contest.kernels(graphs.capture((contest.target,))[0]) if contest.prepared.cuda_graph else None
    with tactics.using(tactic):
        timed = contest.kernels(contest.target)
    return {**seen, "eager": eager == timed, "graph": None if replay is None else replay == timed}
