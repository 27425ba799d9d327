"""What is known of a wrapper and of a CUDA graph in a recorded program, kept as an attribute of each."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.extensions.traffic.arguments import Key
from pytest_flashinfer_perf.extensions.traffic.pieces import CallTally, Held

MARK = "_flashinfer_perf_traffic"  # the attribute


class State:
    """What is known of a wrapper: the call that made it, its last plan, and what that plan's tensors held."""

    def __init__(self) -> None:
        self.token = 0  # one for each pair of them: a part of the key of calls
        self.constructed: CallTally | None = None
        self.planned: CallTally | None = None
        self.backend: str | None = None
        self.held: Held | None = None
        self.is_wanted = False  # by a call that is to keep a sample: the next plan is held
        self.graphs: list[Graph] = []

    def __reduce__(self) -> tuple[type[State], tuple[()]]:
        return State, ()  # a copy of the wrapper begins anew

    def described(self) -> dict[str, Any]:
        init, plan = (tally.call["arguments"] if tally else {} for tally in (self.constructed, self.planned))
        return {"wrapper": {"init": init, "plan": plan}, **({"backend": self.backend} if self.backend else {})}


NO_STATE = State()


@dataclass
class Captured:
    """A call in a CUDA graph: its tally as long as the wrapper's plan is that of the key; None if it is dropped."""

    key: Key
    tally: CallTally | None
    state: State
    buffers: dict[str, Callable[[], Any]]  # of its small tensors, which the program refills before replays
    times: int = 0

    def readable(self) -> dict[str, Any]:
        """The tensors that the program refills, if all of them are still there."""
        tensors = {name: buffer() for name, buffer in self.buffers.items()}
        if any(one is None for one in tensors.values()):
            self.buffers, tensors = {}, {}
        return tensors


class Graph:
    """What a CUDA graph captured: its calls, how often it was replayed, and the replay that is read next."""

    def __init__(self, graph: Any) -> None:
        self.graph = weakref.ref(graph)
        setattr(graph, MARK, self)
        self.calls: dict[tuple[Key, int], Captured] = {}
        self.replays = self.settled = 0
        self.due = math.inf

    @property
    def is_over(self) -> bool:
        """Whether it is gone, or has captured anew."""
        return getattr(self.graph(), MARK, None) is not self
