"""Confirm a solution's times by the clock of its judge, with calls on inputs that nobody could have seen before.

The solution's process times single calls with a cold cache, by an instrument that the solution may have changed. Many
calls in a row, which are asked for and whose answers are compared here, cannot take less than they really do.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flashinfer_bench.data import Correctness
from torch import Tensor

from pytest_flashinfer_perf.api import formatting
from pytest_flashinfer_perf.api import timing as core_timing
from pytest_flashinfer_perf.extensions.trace_sets.siblings import Siblings
from pytest_flashinfer_perf.extensions.trace_sets.solution import (
    Answer,
    ImpossibleTimeError,
    Inputs,
    Solution,
    Task,
    not_confirmed,
)

MARGIN = 0.5  # calls in a row may find the cache warm, or meet another process: a time within a factor of 2 is believed
HOST_S = 1e-3  # of a call that no CUDA graph can hold, a GPU's time may be this much less than what the host takes
NODE_S = 2e-6  # between two calls of a CUDA graph: of a kernel of 1.6 us, an H200 takes 3.4 us a call
ROUNDS, COUNTS = 3, (1, 4, 16, 64, 256)  # few calls are seldom interrupted, of many a request is the smaller part
FEWEST_ROUNDS = 2  # the answers of the second show who remembers those of the first
LONGEST_S = 0.05
MOST_BYTES = {True: 1 << 30, False: 64 << 20}  # of inputs, on a GPU and on a CPU
COMPARED = 4  # answers of each round


class AnswerJudge(Protocol):
    """What an evaluator knows of a definition: its inputs, and which answers to them are right."""

    fewest_outputs: int | None

    def inputs(self, task: Task, trial: int) -> list[Any]: ...

    def expected(self, task: Task, inputs: Inputs) -> Answer: ...

    def judged(self, task: Task, inputs: Inputs, got: Answer, want: Answer) -> Correctness: ...


def confirm(
    evaluator: AnswerJudge,
    task: Task,
    solution: Solution,
    timings: Sequence[core_timing.Timing],
    siblings: Siblings,
) -> None:
    """Raise an error if calls take at least twice as long as was reported, or if nobody can say what they take."""
    calls = Calls(evaluator, task, solution, siblings)
    load = next((one.contention for one in timings if one.contention is not None and one.contention.is_loaded), None)
    if load is not None:
        calls.seconds(calls.fresh, enough=0.0)  # all rounds: who remembers answers is wrong, however long it takes
        raise not_confirmed(load.sentence)
    doubt = _doubt(calls, min(timing.median for timing in timings))
    if doubt:
        raise ImpossibleTimeError(doubt)


def _doubt(calls: Calls, reported: float) -> str:
    """Why a reported time cannot be that of a call; empty if it can."""
    measured = calls.seconds(calls.fresh, reported / MARGIN, FEWEST_ROUNDS)
    if reported >= MARGIN * measured:
        return ""
    if calls.seconds(calls.repeated, MARGIN * measured) < MARGIN * measured:
        anew, again = map(formatting.duration, (measured, reported))
        sentence = f"a call takes {anew} for new inputs, and {again} for those of the last call"
        return f"remembers answers: {sentence}"
    if calls.task.device.is_gpu:
        captured = calls.captured_seconds(reported / MARGIN + NODE_S)
        measured = measured - HOST_S if captured is None else captured - NODE_S
    if reported >= MARGIN * measured:
        return ""
    own, other = map(formatting.duration, (reported, measured))
    return f"impossible time: {own} per call by its own clock, {other} by that of another process"


@dataclass
class Calls:
    """Calls in a row, on inputs that nobody has seen and that look like each other, or on the same ones again."""

    evaluator: AnswerJudge
    task: Task
    solution: Solution
    siblings: Siblings

    def __post_init__(self) -> None:
        self._one = self._drawn()
        size = sum(value.nbytes for value in self._one if isinstance(value, Tensor))
        self._most = max(1, MOST_BYTES[self.task.device.is_gpu] // max(1, size))
        self._count = 1

    def fresh(self) -> list[Inputs]:
        """New ones and their siblings, since tiny inputs have few of these; all are new where there are none."""
        new = self._drawn()
        return [new, *(self.siblings.of(new) if self.siblings.pairs else self._drawn() for _ in range(self._count - 1))]

    def repeated(self) -> list[Inputs]:
        return [self._one] * self._count

    def seconds(self, contents: Callable[[], list[Inputs]], enough: float, fewest: int = 1) -> float:
        """The shortest time of a call, by rounds of few and of many calls, up to one with no more than `enough`."""
        least = math.inf
        for done, count in enumerate(COUNTS * ROUNDS, 1):
            self._count = max(1, min(count, self._most, math.floor(LONGEST_S / least)))
            calls = contents()
            self.solution.give(calls)
            least = min(least, self._round(calls))
            if least <= enough and done >= fewest:
                break
        return least

    def captured_seconds(self, enough: float) -> float | None:
        """The seconds of a call in a CUDA graph of as many calls as before; None if no graph can be captured."""
        if not self.solution.captured():
            return None
        least = math.inf
        for _ in COUNTS * ROUNDS:
            calls = self.fresh()
            if not self.solution.give(calls):
                return None  # another number among the arguments than was captured
            least = min(least, self._round(calls, captured=True))
            if least <= enough:
                break
        return least

    def _round(self, calls: list[Inputs], *, captured: bool = False) -> float:
        """The time of a call in a row, some of whose answers are compared, nobody can foresee which."""
        took, answers = self.solution.answers(self.evaluator.fewest_outputs, captured=captured)
        for at in random.SystemRandom().sample(range(len(calls)), min(len(calls), COMPARED)):
            want = self.evaluator.expected(self.task, calls[at])
            self.evaluator.judged(self.task, calls[at], answers[at], want)
        return took / len(calls)

    def _drawn(self) -> list[Any]:
        """Inputs from a seed that no solution can foresee."""
        return self.evaluator.inputs(replace(self.task, seed=secrets.randbits(62)), 0)
