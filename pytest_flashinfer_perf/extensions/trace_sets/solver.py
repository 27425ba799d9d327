"""What the process of a solution does: build it, call it on arguments in shared memory, and time it.

Nothing here is believed, since the solution may change all of it. The judge compares what lies in the shared memory,
and its own clock confirms the times.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, ClassVar

import torch
from flashinfer_bench.compile import BuilderRegistry, Runnable
from flashinfer_bench.data import Definition, EvaluationStatus, Solution
from pydantic import ConfigDict, TypeAdapter
from torch import Tensor

from pytest_flashinfer_perf.api import Measuring, Target, devices, instruments
from pytest_flashinfer_perf.api import timing as core_timing
from pytest_flashinfer_perf.engine import graphs
from pytest_flashinfer_perf.extensions.trace_sets import shared
from pytest_flashinfer_perf.extensions.trace_sets.shared import Arguments

Claims = list[tuple[list[int], str]]  # the shapes and types of what was returned


@dataclass(frozen=True)
class Reply:
    """An answer. `failed` names a status; `returned` has what each call returned, nothing if it writes its outputs."""

    failed: str = ""
    message: str = ""
    writes: bool = False
    returned: list[Claims] = field(default_factory=list)
    captured: bool = False
    unjoined: bool = False
    timing: core_timing.Timing | None = None
    peak_memory_bytes: int | None = None

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)  # of a timing, in JSON always None


REPLY = TypeAdapter(Reply)


class Solver:
    """Answers the judge's requests, which are the name and the arguments of a public method."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._runnable: Runnable | None = None
        self._writes = False
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._device = devices.find("cpu")
        self._bound: list[tuple[tuple[Any, ...], tuple[Tensor, ...]]] = []
        self._captured: tuple[instruments.Call, list[Claims]] | None = None

    def __call__(self, request: tuple[str, tuple[Any, ...]]) -> bytes:
        name, arguments = request
        failed = EvaluationStatus.COMPILE_ERROR if name == "build" else EvaluationStatus.RUNTIME_ERROR
        try:
            reply = getattr(self, name)(*arguments)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - a solution is arbitrary code
            traceback.print_exception(error)
            reply = Reply(failed.value, f"{type(error).__name__}: {error}")
        return REPLY.dump_json(reply)

    def build(self, definition: Definition, solution: Solution, device: str) -> Reply:
        torch.set_grad_enabled(mode=False)
        self._device = devices.find(device)
        self._runnable = BuilderRegistry.get_instance().build(definition, solution)
        self._writes = bool(self._runnable.metadata.destination_passing_style)
        return Reply(writes=self._writes)

    def open(self, handle: Any, size: int) -> Reply:
        """Open the shared memory: a handle of CUDA's, or a file that follows this request."""
        if handle is not None:
            rebuild, arguments = handle
            self._memory = rebuild(*arguments)
            return Reply()
        file = recv_handle(self._connection)
        self._memory = shared.opened_file(file, size)
        os.close(file)
        self._memory[:: 1 << 12].sum()  # so that no timed call is the first to touch a page
        return Reply()

    def use(self, arguments: tuple[Arguments, ...]) -> Reply:
        """The places of the arguments for what is asked from now on."""
        self._bound = [(one.values_in(self._memory), one.written(self._memory)) for one in arguments]
        return Reply()

    def call_each(self, captured: bool) -> Reply:
        """Call the solution once with each of the arguments, by a CUDA graph if they were captured."""
        if captured:
            assert self._captured is not None
            replay, returned = self._captured
            replay()
        else:
            returned = self._call_on_each_input()
        self._device.synchronize()
        return Reply(returned=returned)

    def _call_on_each_input(self) -> list[Claims]:
        assert self._runnable is not None
        if self._writes:
            for inputs, written in self._bound:
                self._runnable(*inputs, *written)
            return []
        return [self._kept(written, self._runnable(*inputs)) for inputs, written in self._bound]

    def _kept(self, written: tuple[Tensor, ...], returned: Any) -> Claims:
        """Copy what was returned into the shared memory, where it is as declared."""
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        dtypes = [*(place.dtype for place in written), *[None] * len(values)]
        tensors = [
            value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=self._memory.device)
            for value, dtype in zip(values, dtypes, strict=False)
        ]
        for place, tensor in zip(written, tensors, strict=False):
            if (place.shape, place.dtype) == (tensor.shape, tensor.dtype):
                place.copy_(tensor)
        return [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]

    def capture(self) -> Reply:
        """Capture these calls in one CUDA graph."""
        claims: list[Claims] = []

        def call() -> None:
            claims[:] = self._call_on_each_input()

        try:
            (replay,) = graphs.capture((call,))
        except RuntimeError as error:
            print(f"no CUDA graph: {error}")  # noqa: T201 - goes into the log of the trace
            return Reply(unjoined="unjoined work" in str(error))
        self._captured = (replay, claims)
        return Reply(captured=True)

    def time(self, measuring: Measuring) -> Reply:
        """Call once with the first of the arguments, then copy the second to their places and time calls there."""
        (inputs, written), (others, _) = self._bound
        runnable, last = self._runnable, [None]
        assert runnable is not None
        runnable(*inputs, *written) if self._writes else runnable(*inputs)
        self._device.synchronize()
        for place, value in zip(inputs, others, strict=True):
            if isinstance(place, Tensor):
                place.copy_(value)

        def call(*args: Any) -> None:
            last[0] = runnable(*args)

        returned: list[Claims] = []
        target = Target(call, (*inputs, *written) if self._writes else inputs, outputs=written if self._writes else ())

        def keep(timed: Target, _work: object) -> None:
            if timed is target and not self._writes:
                returned.append(self._kept(written, last[0]))

        if self._device.is_gpu:
            torch.cuda.reset_peak_memory_stats(self._device.torch)
        with self._device.threads(measuring.cpu_threads):
            timing = core_timing.run(target, measuring, self._device, cuda_graph=False, verify=keep)
        self._device.synchronize()
        peak = torch.cuda.max_memory_allocated(self._device.torch) if self._device.is_gpu else None
        return Reply(returned=returned, timing=timing, peak_memory_bytes=peak)
