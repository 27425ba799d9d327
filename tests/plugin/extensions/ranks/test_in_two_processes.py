"""What two processes find out over gloo: how long a call of both takes, and whether each routine is right on both.

Both are asked in the same two processes, forks of one that has imported torch, which takes longer than all they do.
"""

import dataclasses
import multiprocessing
import statistics
from functools import partial
from pathlib import Path

import exchanges
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes

from pytest_flashinfer_perf import check_answer
from pytest_flashinfer_perf.engine.call import CallSpec
from pytest_flashinfer_perf.engine.instruments import Work
from pytest_flashinfer_perf.engine.measure import measure_call
from pytest_flashinfer_perf.engine.one_case import run_case
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.extensions.ranks import joined, timing
from pytest_flashinfer_perf.extensions.ranks.routines._shared import RoutineOfRanks
from pytest_flashinfer_perf.extensions.ranks.routines.allreduce_fusion import CODES
from pytest_flashinfer_perf.extensions.ranks.timing import HostClock, Together
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Backend, CannotRunError, Shape

BETWEEN = {name: routine for name, routine in all_routines().items() if isinstance(routine, RoutineOfRanks)}
CHANGES = {
    "allreduce_fusion": [{"pattern": pattern} for pattern in CODES] + [{"input_dtype": "float16", "num_tokens": 1}],
    "moe_a2a_dispatch_combine": [
        {},
        *({"quant_dtype": quantised} for quantised in ("fp8_block_scale", "nvfp4", None)),
        {"expert_load": "one"},
        {"expert_load": "zipf", "num_tokens": 3},
    ],
}
FAULTS = ("none", "lost", "stale")
TWICE = Measuring(iters=2, cold_l2="none")
ALLOWED = Checking(allow_output_mismatch=True)  # a rank that stopped would leave the other waiting
ALL = dataclasses.replace(ALLOWED, refcheck="only")


def cases():
    """Each routine's smoke tier with each change: patterns, phases, ways to quantise, and experts of one rank alone."""
    for name, routine in BETWEEN.items():
        [first, *_] = routine.tiers["smoke"]()
        for change in CHANGES[name]:
            params = dataclasses.replace(first.params, **change)
            yield f"{name}/{params.slug()}", routine, params


def faulty(routine, fault):
    """The routine with a backend that gives something else to the call than this rank's input."""

    def build(p, x, options):
        built, first = routine.backends["torch"].build(p, x, options), []

        def launch(x):
            given = x.input.clone()
            if fault == "lost" and given.shape[0]:
                given.view(torch.uint8)[-1] = 0
            if fault == "stale":
                first[:] = first or [given]
                given = first[0]
            return built.launch(x._replace(input=given))

        return dataclasses.replace(built, launch=launch)

    return dataclasses.replace(routine, backends={"torch": Backend("torch", build)})


def all_reduced(x):
    y = x.clone()
    dist.all_reduce(y)
    return y


class SlowAfterIdling:
    """A clock of which the first call of several takes longer than the next, and which gains with each batch of calls.

    On the second rank it gains, by as many nanoseconds.
    """

    name, trace, drifts = "slow after idling", "of a call", True

    def __init__(self, gains):
        self.gains, self.ahead = gains, 0

    def spans(self, _work, count):
        now = self.ahead
        self.ahead += self.gains
        return [(now, now + 109_000), *[(now, now + 12_000)] * (count - 1)]


def _stale(group):
    """What is said of a call that keeps what the other rank gave to its first one."""
    kept, x = [], torch.randn(64, generator=torch.Generator().manual_seed(group.rank))

    def stale(x):
        kept[:] = kept or [sum(group.all(x)) - x]
        return x + kept[0]

    call = CallSpec(stale, (x,), reference=lambda: sum(group.all(x)))
    seen = measure_call(call, TWICE, ALLOWED, time_calls=partial(timing.run, group))
    return seen.verdict.faults


def _in_a_rank(rank, folder):
    group = joined.join(rank, 2, Path(folder, "store"), devices.find("cpu"))
    torch.save((_found(), _clocked(group)), Path(folder, f"seen-{rank}"))
    joined.leave()


def _found():
    """What is said of each routine's answers, right ones and those of its faults."""
    found = {}
    for name, routine, params in cases():
        for fault in FAULTS:
            case = Case(faulty(routine, fault), Shape(params), "torch")
            seen = run_case(case, Measuring(), ALL, devices.find("cpu")).measurement.verdict.faults
            found[name, fault] = "; ".join(seen) or "right"
    exchanges.install()
    found["as FlashInfer's", "none"] = _timed_elsewhere(BETWEEN["moe_a2a_dispatch_combine"])
    return found


def _timed_elsewhere(routine):
    """What is said of the answers at two placements: the call of the first is built before that of the second."""
    [first, *_] = routine.tiers["smoke"]()
    backends = {"torch": Backend("torch", routine.backends["trtllm"].build)}
    shape = Shape(dataclasses.replace(first.params, quant_dtype=None))
    case = Case(dataclasses.replace(routine, backends=backends), shape, "torch")
    together = partial(timing.run, joined.here())
    seen = run_case(case, TWICE, ALLOWED, devices.find("cpu"), time_calls=together).measurement
    return len(seen.timing.placements), "; ".join(seen.verdict.faults) or "right"


def _clocked(group):
    """A call by the host's clock, and by one that drifts."""
    stale = _stale(group)
    work = Work((partial(dist.all_reduce, torch.ones(64)),), flush=False, device=group.device)
    together = Together(group, HostClock(group))
    known = together.sample(work, 5, 1)
    idle = Together(group, SlowAfterIdling(1000 * group.rank))
    samples = [idle.sample(work, 5, 2), idle.sample(work, 5, 2)]
    timing.chosen = lambda *_: (idle, "")  # of this process, which ends with it
    target = Target(all_reduced, (torch.ones(64),))
    seen = timing.run(group, target, TWICE, group.device, cuda_graph=False, verify=lambda *_: None).observations
    return known, together.described(), (samples, idle.described(), seen.trace), stale


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.set_forkserver_preload(["hypothesis", "pytest_flashinfer_perf.engine.one_case"])
    processes.start_processes(_in_a_rank, (str(folder),), 2, start_method="forkserver")
    return [torch.load(folder / f"seen-{rank}", weights_only=False) for rank in range(2)]


@pytest.fixture
def found(of_ranks):
    return [of_rank for of_rank, _ in of_ranks]


@pytest.fixture
def clocked(of_ranks):
    return [of_rank for _, of_rank in of_ranks]


def test_every_routine_is_right_on_each_rank(found):
    right = {name for name, _, _ in cases()}
    assert len(right) >= 11
    for of_rank in found:
        assert {name for (name, fault), said in of_rank.items() if fault == "none" and said == "right"} == right


def test_the_rows_of_each_dispatch_are_those_that_its_combine_reads(found):
    """A second dispatch leaves them in another order."""
    for of_rank in found:
        assert of_rank["as FlashInfer's", "none"] == (2, "right")


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_a_row_that_is_lost_and_a_buffer_that_is_stale_are_wrong_on_some_rank(found, fault):
    for name, _, _ in cases():
        said = [of_rank[name, fault] for of_rank in found]
        assert any(one != "right" for one in said), name
    stale = [said for of_rank in found for (_, one), said in of_rank.items() if one == "stale" and said != "right"]
    assert all("of one more call with its activations negated in place" in said for said in stale)


def test_alone_a_call_is_refused_with_what_to_do():
    for routine in BETWEEN.values():
        [first, *_] = routine.tiers["smoke"]()
        with pytest.raises(CannotRunError, match="needs 2 processes that make it together"):
            check_answer(routine, "torch", first.params, device="cpu")


@pytest.mark.parametrize(
    ("name", "backend", "change", "sentence"),
    [
        ("moe_a2a_dispatch_combine", "trtllm", {"top_k": 3}, "is compiled for a --top_k of 1, 2, 4,"),
        ("allreduce_fusion", "vllm", {"num_gpus": 5}, "2, 4, 6 or 8 GPUs, not 5"),
        ("allreduce_fusion", "trtllm-twoshot", {"num_tokens": 2}, "two-shot needs more tokens than the 2 ranks"),
    ],
)
def test_what_a_kernel_is_not_made_for_is_a_skip_with_that_sentence(hopper, name, backend, change, sentence):
    [first, *_] = BETWEEN[name].tiers["smoke"]()
    limits = BETWEEN[name].backends[backend].limits
    assert not list(limits(first.params, backend, hopper))
    assert sentence in next(iter(limits(dataclasses.replace(first.params, **change), backend, hopper)))


def test_shapes_have_as_many_ranks_as_they_say():
    for routine in BETWEEN.values():
        for tier in routine.tiers.values():
            assert {routine.ranks(shape.params) for shape in tier() if isinstance(shape, Shape)} == {2}


def test_every_rank_has_the_same_samples(clocked):
    (known, described, *_), other = clocked
    assert known == other[0]
    assert 0 < statistics.median(one.seconds for one in known) <= described.max_over_ranks_s


def test_the_first_call_after_idling_is_not_timed_and_how_far_a_clock_has_drifted_is_taken_off(clocked):
    for *_, (samples, described, trace), _ in clocked:
        assert [[one.seconds for one in placement] for placement in samples] == [[12e-6] * 5] * 2
        assert (described.max_over_ranks_s, described.arrival_skew_s, described.end_skew_s) == (12e-6, 0, 0)
        assert trace == "of a call"


def test_a_stale_buffer_is_right_until_the_inputs_of_all_ranks_have_changed(clocked):
    for *_, faults in clocked:
        assert len(faults) == 1
        assert faults[0].startswith("of one more call with its input")
