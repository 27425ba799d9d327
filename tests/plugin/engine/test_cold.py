import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from said_to_be import SaidToBeAGpu

from pytest_flashinfer_perf import Measuring
from pytest_flashinfer_perf.engine import clocks, cold, copies, instruments, timing
from pytest_flashinfer_perf.engine.instruments import CallTime, Wall
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.machine import nvrtc

MIB = 1 << 20


@given(st.integers(1, 10**10), st.integers(1, 10**9))
def test_five_caches_lie_between_two_uses_of_a_copy(read, cache):
    number = cold.rotations(read, cache)
    between = (number - 1) * read
    assert between >= 5 * cache or (number == 1 and read >= 5 * cache)
    assert number < 3 or (number - 2) * read < 5 * cache, "one copy more than it takes"


def test_a_slice_of_a_large_storage_copies_only_what_it_covers():
    large = torch.arange(MIB, dtype=torch.int32)
    part = large[1000:1064]
    copy = cold.clone((part,), set())[0]
    assert torch.equal(copy, part)
    assert copy.untyped_storage().nbytes() < 2 * part.nbytes + copies.ALIGNMENT


def test_outputs_are_not_rotated():
    a, out = torch.ones(256), torch.zeros(256)
    sets = cold.prepare((a, out), [out], "rotate", cache_bytes=1024, free_bytes=MIB).sets
    assert len(sets) == 6
    assert all(out_of_set is out for _, out_of_set in sets)
    assert len({a_of_set.data_ptr() for a_of_set, _ in sets}) == 6


def test_no_more_copies_than_calls_each_of_which_must_leave_the_cache_once():
    a = torch.ones(64)
    few = cold.prepare((a,), [], "rotate", cache_bytes=64 * MIB, free_bytes=1 << 60, calls=8)
    assert (few.mode, len(few.sets), few.just_written) == ("rotate", 8, True)
    many = cold.prepare((a,), [], "rotate", cache_bytes=256, free_bytes=1 << 60, calls=8)
    assert (many.mode, len(many.sets), many.just_written) == ("rotate", 6, True)


@pytest.mark.parametrize(
    ("elements", "mode", "sets"), [(1 << 12, "rotate", True), (1 << 16, "rotate", False), (64, "flush", False)]
)
def test_a_gpu_gets_no_more_copies_than_a_placement_makes_calls(hopper, monkeypatch, elements, mode, sets):
    """Each is used once: by the untimed and timed calls, those between stamps, and the trace."""
    used = []

    class Instrument(Wall):
        def sample(self, work, count, warmup):
            return [(work(), CallTime(1e-3))[1] for _ in range(instruments.OWN_CALLS + warmup + count)][-count:]

    def stamped(work, _each):
        return [work() for _ in range(clocks.ALL_CALLS)] and None

    monkeypatch.setattr(timing, "_clocks", stamped)
    monkeypatch.setattr(nvrtc, "missing", lambda _device: "there is no GPU")
    bench = timing.Bench(
        Instrument("cupti"), Measuring(), SaidToBeAGpu(**{**vars(hopper), "cache_bytes": MIB}), cuda_graph=False
    )
    placed = bench.time_placement(Target(lambda a: used.append(a.data_ptr()), (torch.empty(elements),)), 10, 2)
    for _ in range(timing.TRACED_CALLS):
        placed.work()
    assert placed.sets.mode == mode
    assert placed.sets.just_written == (mode == "rotate")
    assert len(used) == len(set(used)) == len(placed.sets.sets) if sets else len(placed.sets.sets) < len(used)


@pytest.mark.parametrize(
    ("argument", "how", "mode", "note"),
    [
        (torch.ones(MIB), {"free_bytes": 1}, "rotate", ""),  # larger than the caches
        (torch.ones(64), {"free_bytes": 1024}, "flush", "do not fit"),
        (torch.ones(64), {"cache_bytes": 64 * MIB}, "flush", "copies"),
        (3, {}, "flush", "no tensor among the arguments to rotate"),
    ],
    ids=["large", "no memory", "too many", "no tensor"],
)
def test_what_cannot_be_rotated_is_flushed_and_says_so(argument, how, mode, note):
    made = cold.prepare((argument,), [], "rotate", **{"cache_bytes": 1024, "free_bytes": 1 << 60, **how})
    assert (made.mode, len(made.sets), note in made.note) == (mode, 1, True)


def test_other_modes_leave_the_arguments_alone():
    arguments = (torch.ones(4),)
    for mode in ("flush", "none"):
        made = cold.prepare(arguments, [], mode, cache_bytes=1024, free_bytes=MIB)
        assert made == cold.ColdSets((arguments,), mode)
