"""A solution as its judge sees it: calls and times that another process makes, answers that lie in shared memory."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Workload
from flashinfer_bench.data import Solution as Sources
from pydantic import ValidationError
from torch import Tensor

from pytest_flashinfer_perf.api import Device, FlashinferPerfError, Measuring, formatting, instruments, processes
from pytest_flashinfer_perf.api import timing as core_timing
from pytest_flashinfer_perf.extensions.trace_sets.config import Resolved
from pytest_flashinfer_perf.extensions.trace_sets.forking import EndedError, Process
from pytest_flashinfer_perf.extensions.trace_sets.shared import Arguments, Like, Memory, Slot, arranged
from pytest_flashinfer_perf.extensions.trace_sets.solver import REPLY, Claims, Reply

Inputs = Sequence[Any]
Answer = tuple[Tensor, ...]
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Task:
    """One workload of a definition, with its configuration and device."""

    definition: Definition
    workload: Workload
    root: Path
    config: Resolved
    seed: int
    device: Device
    measuring: Measuring

    @property
    def trials(self) -> range:
        return range(self.config.num_trials)

    def outputs(self, axes: Mapping[str, int] | None = None) -> list[Like]:
        """The shapes and types of the outputs that the definition declares."""
        shapes = self.definition.get_output_shapes(axes or self.workload.axes)
        return [(tuple(s or ()), dtype) for s, dtype in zip(shapes, self.definition.torch_output_dtypes, strict=True)]

    @property
    def counts(self) -> Measuring:
        return replace(self.measuring, iters=self.config.iterations, warmup=self.config.warmup_runs)


class SolutionError(FlashinferPerfError):
    """A solution does not pass: its status, and the reason."""

    def __init__(self, status: EvaluationStatus, message: str, correctness: Correctness | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.correctness = correctness


class ImpossibleTimeError(FlashinferPerfError):
    """The times of a solution cannot be those of the calls that were asked for."""


NOT_CONFIRMED = "time not confirmed: "


def not_confirmed(reason: str) -> SolutionError:
    """FlashInfer-Bench has no status for a time of which nobody can say whether it is right."""
    return SolutionError(EvaluationStatus.RUNTIME_ERROR, NOT_CONFIRMED + reason)


class Solution:
    """A solution in another process."""

    def __init__(self, task: Task, process: Process, memory: Memory) -> None:
        self.task = task
        self.writes = True
        self.peak_memory_bytes: int | None = None
        self._process = process
        self._memory = memory
        self._arguments: tuple[Arguments, ...] = ()

    def build(self, sources: Sources) -> None:
        self.writes = self._ask("build", self.task.definition, sources, str(self.task.device.torch)).writes
        self._open()

    def answer(self, inputs: Inputs, fewest: int | None = None, axes: Mapping[str, int] | None = None) -> Answer:
        """The answer to copies of these inputs. At least `fewest` of the outputs must be returned."""
        self.give([inputs], axes)
        return self._answers(self._ask("call_each", False), fewest)[0]

    def answers(self, fewest: int | None = None, *, captured: bool = False) -> tuple[float, list[Answer]]:
        """The answers to all that was given, and the seconds that they took by the clock of this process."""
        since = time.perf_counter()
        reply = self._ask("call_each", captured)
        return time.perf_counter() - since, self._answers(reply, fewest)

    def captured(self) -> bool:
        """Whether its process could capture these calls in a CUDA graph."""
        reply = self._ask("capture")
        if reply.unjoined:
            raise ImpossibleTimeError("impossible time: a call leaves work on another stream, for which nothing waits")
        return reply.captured

    def timing(
        self, inputs: Inputs, fewest: int | None = None, *, before: Inputs | None = None
    ) -> tuple[core_timing.Timing, Answer | None]:
        """The times that its process reports, and the last timed answer; no answer if a call changed the inputs.

        An untimed call with the inputs `before` comes first: at the same addresses, which the others are copied to.
        """
        self.give([inputs if before is None else before, inputs])
        since = time.perf_counter()
        reply = self._ask("time", self.task.counts)
        timing = _possible(reply.timing, time.perf_counter() - since, self.task)
        self.peak_memory_bytes = reply.peak_memory_bytes
        pairs = zip(self.task.definition.inputs, self._arguments[0].values_in(self._memory.tensor), inputs, strict=True)
        changed = [name for name, now, before in pairs if not _same(now, before)]
        if changed:
            print(f"changes its inputs {', '.join(changed)}: answers of timed calls are not checked")  # noqa: T201
        return timing, None if changed else self._answers(reply, fewest, 1)[0]

    def give(self, contents: Sequence[Inputs], axes: Mapping[str, int] | None = None) -> bool:
        """Write the inputs of calls into the shared memory, and spoil the outputs; whether the places are the same."""
        arguments = arranged(contents, self.task.outputs(axes))
        grown = self._memory.grow(arguments[-1].end)
        if grown:
            self._open()
        same = not grown and arguments == self._arguments
        if not same:
            self._arguments = arguments
            self._ask("use", arguments)
        for one, inputs in zip(arguments, contents, strict=True):
            one.fill(self._memory.tensor, inputs)
        self.task.device.synchronize()
        return same

    def _open(self) -> None:
        if len(self._memory.tensor):
            self._ask("open", self._memory.handle, len(self._memory.tensor), file=self._memory.file)

    def _ask(self, name: str, *arguments: Any, file: int = -1) -> Reply:
        try:
            reply: Reply = REPLY.validate_json(self._process.ask((name, arguments), file))
            status = EvaluationStatus(reply.failed) if reply.failed else None
        except EndedError as error:
            raise _ended(error, self.task) from None
        except (ValidationError, ValueError) as error:
            self._process.end()
            raise SolutionError(EvaluationStatus.RUNTIME_ERROR, f"its process answers nonsense: {error}") from None
        if status is not None:
            raise SolutionError(status, reply.message)
        return reply

    def _answers(self, reply: Reply, fewest: int | None, count: int | None = None) -> list[Answer]:
        """Copies of the first answers, so that nothing can change them while they are compared."""
        called = self._arguments[:count]
        start = called[0].outputs[0].start
        memory = self._memory.tensor[start : called[-1].end].clone()
        self.task.device.synchronize()
        returned = [None] * len(called) if self.writes else reply.returned
        if len(returned) != len(called):
            raise SolutionError(EvaluationStatus.RUNTIME_ERROR, "its process lost an answer")
        both = zip(called, returned, strict=True)
        places = [self._places(arguments, claims, fewest) for arguments, claims in both]
        return [tuple(replace(slot, start=slot.start - start).of(memory) for slot in one) for one in places]

    def _places(self, arguments: Arguments, claims: Claims | None, fewest: int | None) -> tuple[Slot, ...]:
        """The places of the answer; raises an error unless what was returned is as the definition declares."""
        declared = arguments.outputs
        if claims is None:
            return declared
        if not (fewest or len(declared)) <= len(claims) <= len(declared):
            sentence = f"returned {len(claims)} values, the definition has {len(declared)} outputs"
            raise SolutionError(EvaluationStatus.RUNTIME_ERROR, sentence)
        for name, (shape, dtype), slot in zip(self.task.definition.outputs, claims, declared, strict=False):
            if tuple(shape) != slot.shape:
                sizes = f"{tuple(shape)} instead of {slot.shape}"
                raise SolutionError(EvaluationStatus.INCORRECT_SHAPE, f"{name}: shape {sizes}")
            if dtype != str(slot.dtype):
                raise SolutionError(EvaluationStatus.INCORRECT_DTYPE, f"{name}: {dtype} instead of {slot.dtype}")
        return declared[: len(claims)]


def _possible(timing: core_timing.Timing | None, waited: float, task: Task) -> core_timing.Timing:
    """The reported times, unless they cannot be."""
    if timing is None or not timing.samples or min(timing.samples) < 0:
        raise ImpossibleTimeError("impossible time: none was reported")
    instrument = instruments.choose(task.measuring.instrument, task.device).instrument.name
    if timing.instrument != instrument:
        raise ImpossibleTimeError(f"impossible time: by {timing.instrument!r}, when {instrument} was to measure")
    total = math.fsum(timing.samples)
    if total > waited:
        sentence = f"timed calls of {formatting.duration(total)} when all of it took {formatting.duration(waited)}"
        raise ImpossibleTimeError(f"impossible time: {sentence}")
    # A solution says nothing of what observers look at.
    return replace(timing, observations=replace(timing.observations, traced={}, parts={}))


def _ended(error: EndedError, task: Task) -> SolutionError:
    if error.status is None:
        sentence = f"no answer within {task.config.timeout_seconds:g} s (timeout_seconds)"
        return SolutionError(EvaluationStatus.TIMEOUT, sentence)
    return SolutionError(EvaluationStatus.RUNTIME_ERROR, f"its process died: {processes.cause(error.status)}")


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    bits = BITS[one.itemsize]
    return torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))
