"""What memory a call takes, by an allocator that counts what the tests' calls take of it."""

import gc
import random
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.extensions.memory import holdings, measuring
from pytest_flashinfer_perf.extensions.memory.measuring import CALLS, FEWEST, PLANS, SECONDS, Allocator, Counted
from pytest_flashinfer_perf.machine import devices

KIB, MIB = 1 << 10, 1 << 20
CPU = devices.find("cpu")


class Scripted:
    """An allocator: `take` and `give` are what a call requests of it and gives back."""

    def __init__(self, current=5 * MIB):
        self.current = self.peak = current

    def take(self, count):
        self.current += count
        self.peak = max(self.peak, self.current)

    def give(self, count):
        self.current -= count

    def read(self):
        return Counted(self.current, self.peak, 7, 100 * MIB)

    def restart(self):
        self.peak = self.current

    def resident(self):
        return 300 * MIB


@pytest.fixture(autouse=True)
def flashinfer(monkeypatch):
    """Its workspaces of a process."""
    monkeypatch.setattr(measuring, "EARLIER", {})
    utils = SimpleNamespace(_cache_buf={})
    monkeypatch.setitem(sys.modules, "flashinfer.utils", utils)
    return utils._cache_buf


def seen(call, plan=None, allocator=None, seconds=1e-4, device=CPU, **how):
    return measuring.CountedCalls(allocator or Scripted(), device, seconds, **how).of(Target(call, plan=plan))


def calls_of(allocator, rng, *, leak=0):
    """A call that takes some memory and gives it back but for the leak, sometimes as late as Python's garbage goes."""

    class Garbage:
        def __init__(self, count):
            self.itself, self.count = self, count

        def __del__(self):
            allocator.give(self.count)

    temporary, is_garbage = rng.choice([0, 512, 3 * MIB]), rng.random() < 0.3

    def call():
        allocator.take(temporary + leak)
        if is_garbage:
            Garbage(temporary)
        else:
            allocator.give(temporary)

    return call, temporary


@pytest.mark.parametrize("leak", [KIB, 0])
def test_a_leak_of_1_kib_a_call_is_found_in_200_of_200_and_none_where_there_is_none(leak):
    gc.freeze()  # little is left to collect
    for seed in range(200):
        rng, allocator = random.Random(seed), Scripted()
        call, temporary = calls_of(allocator, rng, leak=leak)
        memory = seen(call, allocator=allocator, seconds=rng.uniform(2e-5, 3e-3))
        assert memory.call.leak == leak
        assert memory.call.peak_bytes == temporary + leak, "without what was allocated before"
    gc.unfreeze()


def test_a_plan_has_a_peak_and_a_leak_of_its_own():
    allocator = Scripted()

    def plan():
        allocator.take(8 * MIB)
        allocator.give(8 * MIB - 512)

    memory = seen(lambda: None, plan, allocator)
    assert (memory.call.peak_bytes, memory.call.leak) == (0, 0)
    assert (memory.plan.peak_bytes, memory.plan.leak) == (8 * MIB, 512)
    assert seen(lambda: None).plan is None


@given(st.floats(1e-7, 1.0), st.floats(0, 1.0))
def test_so_many_calls_and_plans_are_made_as_there_is_time_for(on_device, on_host):
    now, made = [0.0], []
    hopper = SimpleNamespace(is_gpu=True, torch=torch.device("cuda"))

    def call():
        made.append(None)
        now[0] += on_host

    memory = seen(call, call, seconds=on_device, device=hopper, clock=lambda: now[0])
    assert len(made) == 3 + memory.call.times + memory.plan.times  # one for workspaces, one for each peak
    each = max(on_device, on_host)
    for repeated, most, seconds in ((memory.call, CALLS, SECONDS), (memory.plan, PLANS, SECONDS / 2)):
        assert FEWEST <= repeated.times <= most
        assert repeated.times == FEWEST or repeated.times * each <= seconds * (1 + 1e-9)


class Wrapper:
    """One of FlashInfer's; `plan` does with its buffer what a test says."""

    def __init__(self, planned=id, *, for_graphs=False):
        self._use_cuda_graph, self._planned = for_graphs, planned
        self._buffer, self._parts = torch.zeros(MIB, dtype=torch.uint8), {"kv": [torch.zeros(256), "text"]}

    def run(self, x=None):
        return x

    def plan(self):
        self._planned(self)


def test_what_is_held_is_named_by_the_way_to_it_and_arguments_are_not_held():
    wrapper, workspace, x = Wrapper(), torch.zeros(512), torch.zeros(9)
    workspaces = (workspace[:2], workspace[2:])

    def launch(x):
        return wrapper.run(x), workspaces

    assert held(Target(launch, (x,))) == {"wrapper._buffer": MIB, "wrapper._parts.kv.0": 1024, "workspaces.0": 2048}
    assert held(Target(wrapper.run, (wrapper._buffer,))) == {"self._parts.kv.0": 1024}
    assert held(Target(lambda: x)) == {"x": 36}
    assert held(Target(torch.add, (x, x.to_sparse()))) == {}


def held(target):
    return {name: one.bytes for name, one in holdings.of_call(target, "cpu").items()}


def larger(wrapper):
    wrapper._buffer = torch.zeros(len(wrapper._buffer) + 512, dtype=torch.uint8)


def test_a_workspace_that_grew_is_named():
    wrapper = Wrapper(larger)
    memory = seen(wrapper.run, wrapper.plan, seconds=SECONDS)
    assert memory.grown == ("self._buffer",)
    assert memory.held["self._buffer"] == MIB
    assert seen(Wrapper().run).grown == ()


LOST = "memory was allocated anew: self._buffer; a captured graph uses what it was"


def test_a_plan_that_allocates_anew_what_a_captured_graph_uses_is_an_error_with_its_name():
    wrapper = Wrapper(larger, for_graphs=True)
    with pytest.raises(pytest.fail.Exception, match=LOST):
        seen(wrapper.run, wrapper.plan)


def test_memory_that_stays_somewhere_is_not_lost():
    retired = []

    def retire(wrapper):
        retired.append(wrapper._buffer)
        larger(wrapper)

    def in_place(wrapper):
        wrapper._buffer = wrapper._buffer.view(-1)

    for plan in (retire, in_place):
        wrapper = Wrapper(plan, for_graphs=True)
        assert seen(wrapper.run, wrapper.plan, seconds=SECONDS).held["self._buffer"] == MIB


def gemm(count, retired=None):
    """A call with a workspace that all calls share, which is replaced by a larger one."""

    def call():
        workspaces = sys.modules["flashinfer.utils"]._cache_buf
        buffer = workspaces.get(("gemm", "cpu"))
        if buffer is None or len(buffer) < count:
            if retired is not None:
                retired.append(buffer)
            workspaces["gemm", "cpu"] = torch.zeros(count, dtype=torch.uint8)

    return call


def test_a_workspace_of_the_process_is_held_as_large_as_the_call_wants_it(flashinfer):
    for count in (4096, 1024):
        gemm(count)()
        assert seen(gemm(count)).held == {"flashinfer's gemm": count}
    assert len(flashinfer["gemm", "cpu"]) == 4096


def test_a_later_case_that_frees_a_workspace_of_earlier_graphs_is_an_error_with_its_name():
    seen(gemm(1024))
    seen(gemm(512))
    with pytest.raises(pytest.fail.Exception, match="anew: flashinfer's gemm;"):
        seen(gemm(2048))
    seen(gemm(2048))
    seen(gemm(4096, retired=[]))


def test_a_gpus_figures_are_exact_requests_and_nothing_is_0_that_is_not_counted(monkeypatch):
    hopper = SimpleNamespace(is_gpu=True, torch=torch.device("cuda"), synchronize=lambda: None)
    sums = {"requested_bytes": {"all": {"current": 3, "peak": 9}}, "reserved_bytes": {"all": {"current": 40}}}
    for name, answer in (
        ("memory_stats_as_nested_dict", {**sums, "num_device_alloc": 5}),
        ("mem_get_info", (900, 1000)),
        ("get_allocator_backend", "native"),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.delenv(measuring.UNCACHED, raising=False)
    assert Allocator(hopper).read() == (3, 9, 5, 60)
    monkeypatch.setenv(measuring.UNCACHED, "1")
    assert "torch counts nothing with" in measuring.missing(hopper)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert "not its native one" in measuring.missing(hopper)
    assert Allocator(hopper).read() is None


def test_without_an_allocator_that_counts_only_what_is_held_and_the_host_are_known():
    wrapper, allocator = Wrapper(), Allocator(CPU)
    before = allocator.resident()
    ballast = bytearray(64 * MIB)
    memory = seen(wrapper.run, wrapper.plan, allocator)
    assert memory.resident_bytes - before > 0.9 * len(ballast)
    assert memory.held["self._buffer"] == MIB
    unknown = (memory.call.peak_bytes, memory.call.leak, memory.plan.peak_bytes, memory.device_allocations)
    assert (*unknown, memory.outside_bytes) == (None,) * 5
