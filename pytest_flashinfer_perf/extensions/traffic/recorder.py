"""What counts FlashInfer's calls inside a recorded program; `hooks.py` gives it the functions to count.

It must not disturb: it imports Python's own modules alone, and an error of its own is counted and never raised into the
program. A call is counted once it has returned, the outermost one alone: an API may call others. All that is counted
lies behind one lock, so that counts are exact whatever threads do. `pieces.py` writes it down every half second.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_flashinfer_perf.extensions.traffic import arguments
from pytest_flashinfer_perf.extensions.traffic.arguments import Key, KeyOf
from pytest_flashinfer_perf.extensions.traffic.graphs import MARK, NO_STATE, Captured, Graph, State
from pytest_flashinfer_perf.extensions.traffic.pieces import CallTally, Held, Writer

MOST_DISTINCT = 20_000  # calls of a process
MOST_BYTES = 32 << 20  # of their descriptions
MOST_COPIES = 256  # of tensors of a GPU that nobody has read yet
Function = Callable[..., Any]


class ThreadState(threading.local):
    """What this thread does: whether it is inside of an API, and which graph it captures."""

    inside = False
    graph: Graph | None = None


@dataclass(eq=False)
class DecoratedApi:
    """A decorated function: its name, its parameters, and the key function of each form of call."""

    name: str
    role: str  # "init", "plan" or "method" of a wrapper, or "function"
    signature: inspect.Signature
    keys: dict[tuple[Any, ...], KeyOf] = field(default_factory=dict)

    @classmethod
    def of(cls, function: Function) -> DecoratedApi:
        signature, name = inspect.signature(function), function.__name__
        is_method = next(iter(signature.parameters), "") == "self"
        roles = {"__init__": "init", "plan": "plan", "fast_decode_plan": "plan"}
        role = roles.get(name, "method") if is_method else "function"
        return cls(arguments.as_api(f"{function.__module__}.{function.__qualname__}"), role, signature)

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, those behind `*` as a list, without self."""
        named = {name: value for name, value in kwargs.items() if name != "skip_check"}  # which no signature has
        bound_arguments = dict(self.signature.bind(*args, **named).arguments)
        for name, one in self.signature.parameters.items():
            if one.kind is one.VAR_KEYWORD:
                bound_arguments |= bound_arguments.pop(name, {})
        if self.role != "function":
            bound_arguments.pop("self")
        return bound_arguments

    def key_of(self, torch: Any, number: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KeyOf:
        """The key function of calls of this form; keys begin with its number and with the wrapper's token."""
        names = [name for name, one in self.signature.parameters.items() if one.kind is not one.VAR_KEYWORD]
        first = 0 if self.role == "function" else 1
        named = [(names[min(at, len(names) - 1)], f"a[{at}]", args[at]) for at in range(first, len(args))]
        named += [(name, f"k[{name!r}]", value) for name, value in kwargs.items()]
        token = f"getattr(a[0], {MARK!r}, no_state).token" if self.role == "method" else "0"
        return arguments.key_maker(torch, f"{number}, {token}", named, no_state=NO_STATE)

    def described(self, torch: Any, bound_arguments: Mapping[str, Any], state: State) -> dict[str, Any]:
        defaults = {name: one.default for name, one in self.signature.parameters.items()}
        call = {"api": self.name, "arguments": arguments.described(torch, bound_arguments, defaults)}
        return {**call, **state.described()} if self.role == "method" and state is not NO_STATE else call


class CallRecorder:
    """Counts the calls of one process."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.here, self.lock = torch, ThreadState(), threading.RLock()
        self.tallies: dict[Key, CallTally] = {}
        self.tokens: dict[Any, int] = {}
        self.graphs: list[Graph] = []
        self.copies: list[tuple[Held, dict[str, Any], Any]] = []
        self.forms = self.numbers = self.capturing = 0
        self.devices: set[int] = set()
        self.cleared()
        self.writer = Writer(folder, self.changes)
        os.register_at_fork(after_in_child=self.forked)

    def cleared(self) -> None:
        self.dropped = self.bytes = 0
        self.fault, self.began = "", time.time()
        self.reported = (0, "")  # what is written of these: calls that were dropped, and the fault

    def forked(self) -> None:
        """Forget, in a forked process, what the parent has counted."""
        self.lock = threading.RLock()
        self.tallies.clear()
        self.devices.clear()
        self.parents, self.copies = self.copies, []  # to free them would ask a GPU that only the parent has
        for graph in self.graphs:
            graph.settled = graph.replays
        self.cleared()
        self.writer.forked()

    def counted(self, decorated: Function, function: Function) -> Function:
        """Wrap a decorated function of FlashInfer, so that its calls are counted."""
        api, here, is_compiling = DecoratedApi.of(function), self.here, self.torch.compiler.is_compiling

        @functools.wraps(decorated)
        def call(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or here.inside:
                return decorated(*args, **kwargs)
            here.inside = True
            try:
                answer = decorated(*args, **kwargs)
            finally:
                here.inside = False
            try:
                self.note(api, args, kwargs)
            except Exception as error:  # noqa: BLE001 - the program has its answer
                self.failed(api.name, error)
            return answer

        return call

    def note(self, api: DecoratedApi, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        form = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        key = (api.keys.get(form) or self.new_form(api, form, args, kwargs))(args, kwargs)
        if not key:
            return
        with self.lock:
            tally = self.tallies.get(key) or self.add(key, api, args, kwargs)
            graph = self.here.graph
            if graph is not None and api.role in {"method", "function"}:
                state = self.state(api, args)
                if (key, id(state)) not in graph.calls:
                    tensors = self.readable(api, args, kwargs)
                    buffers = {name: arguments.buffer(self.torch, one) for name, one in tensors.items()}
                    self.capture(graph, Captured(key, tally, state, buffers))
                graph.calls[key, id(state)].times += 1
                return
            if tally is None:
                self.dropped += 1
            else:
                tally.count += 1
                if tally.count >= tally.due and api.role != "plan":
                    self.keep(tally, self.held(self.readable(api, args, kwargs)), self.state(api, args))
            if api.role == "plan":
                self.plan(tally, api, args, kwargs)
            elif api.role == "init":
                state = State()
                setattr(args[0], MARK, state)
                state.constructed, state.token = tally, self.token(tally, None, None)

    def token(self, *state: Any) -> int:
        numbers = tuple(one.number if isinstance(one, CallTally) else one for one in state)
        return self.tokens.setdefault(numbers, len(self.tokens) + 1)

    def new_form(self, api: DecoratedApi, form: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KeyOf:
        with self.lock:
            self.forms += 1
            is_traced = any(issubclass(kind, self.fakes()) for kind in form if isinstance(kind, type))
            key_of = api.key_of(self.torch, self.forms, args, kwargs) if not is_traced else lambda *_: ()
            api.keys[form] = key_of
        return key_of

    def fakes(self) -> tuple[type, ...]:
        """The tensors that have no values, by which torch traces a call without making it."""
        module = sys.modules.get("torch._subclasses.fake_tensor")
        return (module.FakeTensor,) if module else ()

    def state(self, api: DecoratedApi, args: tuple[Any, ...]) -> State:
        return getattr(args[0], MARK, NO_STATE) if api.role == "method" else NO_STATE

    def add(self, key: Key, api: DecoratedApi, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallTally | None:
        if self.is_full():
            return None
        bound_arguments, state = api.bound(args, kwargs), self.state(api, args)
        self.devices |= {one.device.index for one in bound_arguments.values() if getattr(one, "is_cuda", False)}
        is_read = bool(arguments.readable(self.torch, bound_arguments))
        return self.new_tally(key, api.described(self.torch, bound_arguments, state), state, is_read=is_read)

    def is_full(self) -> bool:
        return len(self.tallies) >= MOST_DISTINCT or self.bytes > MOST_BYTES

    def new_tally(self, key: Key, call: dict[str, Any], state: State, *, is_read: bool) -> CallTally | None:
        if self.is_full():
            return None
        self.bytes += len(repr(call))
        is_planned = state.planned is not None and state.planned.due < math.inf
        self.numbers += 1
        self.tallies[key] = tally = CallTally(self.numbers, call, 1 if is_read or is_planned else math.inf)
        self.writer.start()
        return tally

    def keep(self, tally: CallTally, held: Held | None, state: State) -> None:
        """Keep a sample of this call; where its wrapper's plan was not held, of one behind the next plan."""
        sample = tuple(one for one in (state.held, held) if one is not None)
        if sample:
            tally.take(sample)
        state.is_wanted = not sample

    def plan(
        self, tally: CallTally | None, api: DecoratedApi, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        state = getattr(args[0], MARK, None)
        if state is None:
            state = State()
            setattr(args[0], MARK, state)
        for graph in state.graphs:
            self.settle(graph)
        is_due = tally is not None and tally.count >= tally.due
        state.held = self.held(self.readable(api, args, kwargs)) if is_due or state.is_wanted else None
        if is_due and tally is not None and state.held is not None:
            tally.take((state.held,))
        backend = getattr(args[0], "_backend", None)
        state.backend = backend if isinstance(backend, str) and arguments.WORD.fullmatch(backend) else None
        state.planned, state.is_wanted = tally, False
        state.token = self.token(state.constructed, tally, state.backend)

    def readable(self, api: DecoratedApi, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return arguments.readable(self.torch, api.bound(args, kwargs))

    def held(self, tensors: Mapping[str, Any]) -> Held | None:
        """Copy the small tensors; None where there are none, or where a GPU may not be asked to copy them."""
        held, cuda = Held(), self.torch.cuda
        there = {name: one for name, one in tensors.items() if one.is_cuda}
        if there and (self.capturing or len(self.copies) >= MOST_COPIES or cuda.is_current_stream_capturing()):
            return None
        held.values = {name: arguments.summary(name, one) for name, one in tensors.items() if one.is_cpu}
        if there:
            held.is_ready, empty = False, functools.partial(self.torch.empty, device="cpu", pin_memory=True)
            copies = {n: empty(one.shape, dtype=one.dtype).copy_(one, non_blocking=True) for n, one in there.items()}
            done = cuda.current_stream(next(iter(there.values())).device).record_event()
            self.copies.append((held, copies, done))
        return held if tensors else None

    def read_copies(self) -> None:
        """Read what the GPU has copied since; to ask it while a graph is being captured could end the capture."""
        if self.capturing:
            return
        for one in [one for one in self.copies if one[2].query()]:
            held, copies, _ = one
            held.values |= {name: arguments.summary(name, copy) for name, copy in copies.items()}
            held.is_ready = True
            self.copies.remove(one)

    def capture(self, graph: Graph, one: Captured) -> None:
        graph.calls[one.key, id(one.state)] = one
        graph.due = 1 if one.buffers else graph.due
        if one.state is not NO_STATE and graph not in one.state.graphs:
            one.state.graphs.append(graph)

    def replayed(self, graph: Graph) -> None:
        """Count a replay that was just enqueued, and copy what its calls were given where a sample of them is due."""
        with self.lock:
            graph.replays += 1
            if graph.replays >= graph.due:
                try:
                    self.settle(graph, is_read=True)
                except Exception as error:  # noqa: BLE001 - the program has its replay
                    self.failed("replay", error, calls=0)

    def settle(self, graph: Graph, *, is_read: bool = False) -> None:
        """Count the calls of a graph for its replays since, with the plans that its wrappers have now."""
        new, graph.settled = graph.replays - graph.settled, graph.replays
        if not new:
            return
        graph.due = math.inf
        for one in graph.calls.values():
            tally = self.tally_now(one)
            if tally is None:
                self.dropped += new * one.times
                continue
            tally.count += new * one.times
            tally.replayed += new * one.times
            if tally.count >= tally.due:
                self.keep(tally, self.held(one.readable()) if is_read else None, one.state)
            if one.buffers:
                graph.due = min(graph.due, graph.replays + max(1, (tally.due - tally.count) / one.times))

    def forget(self, graph: Graph) -> None:
        self.graphs.remove(graph)
        for state in {one.state for one in graph.calls.values()} - {NO_STATE}:
            state.graphs.remove(graph)

    def tally_now(self, one: Captured) -> CallTally | None:
        if one.tally is None or not one.key[1]:
            return one.tally
        key, call = (one.key[0], one.state.token, *one.key[2:]), {**one.tally.call, **one.state.described()}
        return self.tallies.get(key) or self.new_tally(key, call, one.state, is_read=bool(one.buffers))

    def failed(self, where: str, error: Exception, calls: int = 1) -> None:
        with self.lock:
            self.writer.start()
            self.dropped += calls
            self.fault = self.fault or f"{where}: {type(error).__name__}: {error}"[:200]

    def changes(self, *, anew: bool) -> tuple[list[Any], list[Callable[[], None]]]:
        """Lines with what has changed since it was written, or with all, and what to call once they are."""
        with self.lock:
            self.look(self.settle_all)
            self.look(self.read_copies)
            changes = list(filter(None, (one.change(anew=anew) for one in self.tallies.values())))
            lines, written = [line for line, _ in changes], [done for _, done in changes]
            facts = (self.dropped, self.fault)
            if lines or facts != self.reported:
                lines.append({"process": self.process()})
                written.append(functools.partial(setattr, self, "reported", facts))
        return lines, written

    def look(self, at: Callable[[], None]) -> None:
        try:
            at()
        except Exception as error:  # noqa: BLE001 - of a GPU that has failed; what was counted is written
            self.failed(at.__name__, error, calls=0)

    def settle_all(self) -> None:
        for graph in list(self.graphs):
            self.settle(graph)
            if graph.is_over:
                self.forget(graph)

    def process(self) -> dict[str, Any]:
        names, cuda = [], self.torch.cuda
        with suppress(Exception):  # of a GPU that has failed
            names = [cuda.get_device_name(index) for index in sorted(self.devices)] if not self.capturing else []
        times = {"began": self.began, "ended": time.time()}
        versions = {
            "flashinfer": getattr(sys.modules.get("flashinfer"), "__version__", None),
            "torch": str(self.torch.__version__),
        }
        return {**times, "fault": self.fault, "dropped": self.dropped, **versions, "devices": names}
