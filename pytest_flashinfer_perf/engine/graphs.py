"""CUDA graphs: capture each call once, so that replaying it takes the host almost no time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pytest_flashinfer_perf.engine import cold
from pytest_flashinfer_perf.engine.instruments import Call
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine.garbage import without_gc

WARMUPS = 3


class CaptureError(FlashinferPerfError, RuntimeError):
    """The call cannot be captured in a CUDA graph."""


@dataclass(frozen=True)
class Replay:
    """A captured call. `returned` is what it returned, if that is kept; each replay overwrites it."""

    graph: Any
    returned: object = None

    def __call__(self) -> object:
        self.graph.replay()
        return self.returned


def refusal(target: Target) -> str | None:
    """Why no graph can hold this call, which is tried on copies of its arguments."""
    args, kwargs = cold.clone((target.args, dict(target.kwargs)), set())
    try:
        capture((lambda: target.function(*args, **kwargs),))
    except RuntimeError as error:  # one of a capture that ends with an error of its own among them
        return str(error)
    return None


def capture(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Capture each call. All graphs share one memory pool, since they never run at the same time.

    Only the first keeps what it returns; the answers of the others share memory. Garbage must have been collected: a
    graph that is freed during a capture ends it, and autotuners leave such graphs behind.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        for _ in range(WARMUPS):
            calls[0]()
        torch.cuda.synchronize()
        with without_gc():
            replays = (_captured(calls[0], pool), *(Replay(_captured(call, pool).graph) for call in calls[1:]))
    torch.cuda.current_stream().wait_stream(stream)
    return replays


def _captured(call: Call, pool: Any) -> Replay:
    """Capture without torch.cuda.graph(), which collects garbage and empties the cache for each capture."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool)
    try:
        returned = call()
    except Exception as error:
        with suppress(RuntimeError):  # ending a failed capture raises an error without information
            graph.capture_end()
        _forget_it()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CaptureError(f"the call cannot be captured, use --perf-cuda-graph=off: {reason}") from error
    graph.capture_end()
    return Replay(graph, returned)


def _forget_it() -> None:
    """Make a capture that succeeds: until then torch's random generator takes the failed one to be running."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.zeros(1, device="cuda")
    graph.capture_end()
