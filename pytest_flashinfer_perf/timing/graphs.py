"""CUDA graphs: each call captured once, so that replaying it costs the host next to nothing."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.timing.instruments import Call, without_gc

WARMUPS = 3


class CaptureError(FlashinferPerfError, RuntimeError):
    """The call does something that a CUDA graph cannot hold."""


@dataclass(frozen=True)
class Replay:
    """A captured call; `returned` is what it returned then, where that is kept, and is written anew each time."""

    graph: Any
    returned: object = None

    def __call__(self) -> object:
        self.graph.replay()
        return self.returned


def capture(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """A replay for each call. All graphs share one memory pool: they never run at the same time.

    The first keeps what it returns; the others' answers share memory. Garbage is collected before: a graph that is
    freed while another is captured ends the capture, and an autotuner leaves some behind.
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
    """Without torch.cuda.graph(): it collects garbage and empties the cache for each of hundreds of captures."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool)
    try:
        returned = call()
    except Exception as error:
        with suppress(RuntimeError):  # a capture that failed ends with an error of its own, which says nothing
            graph.capture_end()
        _forget_it()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CaptureError(f"the call cannot be captured, use --perf-cuda-graph=off: {reason}") from error
    graph.capture_end()
    return Replay(graph, returned)


def _forget_it() -> None:
    """A capture that holds: torch's random numbers believe that the failed one goes on until another has ended."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    torch.zeros(1, device="cuda")
    graph.capture_end()
