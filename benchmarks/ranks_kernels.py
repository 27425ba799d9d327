"""Calls of two processes: NCCL's sum in place, torch's one-shot, a copy, and four of which three end badly.

how="--import-mode=importlib --perf-no-multicast"
pytest benchmarks/ranks_kernels.py $how -k 'alone or one_shot or copy' --benchmark-json=RUN.json
pytest benchmarks/ranks_kernels.py $how -k ends --perf-timeout=20
pytest benchmarks/ranks_cases.txt --perf-no-multicast --benchmark-json=CASES.json
"""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from pytest_flashinfer_perf.extensions.ranks.asked import NO_MULTICAST
from pytest_flashinfer_perf.extensions.ranks.ranked import PerfInRanks

os.environ.update(NO_MULTICAST)  # also without the option: a rank imports this before it joins its group
pytestmark = pytest.mark.perf_ranks(2, collective="all_reduce")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MB, MB67, KB128 = (64, 8192), (4096, 8192), (8, 8192)


def drawn(perf: PerfInRanks, shape: tuple[int, int]) -> torch.Tensor:
    numbers = torch.Generator(DEVICE).manual_seed(1 + perf.ranks.rank)
    return torch.randn(shape, generator=numbers, device=DEVICE).bfloat16()


def summed(perf: PerfInRanks, x: torch.Tensor) -> torch.Tensor:
    return torch.stack(perf.ranks.all(x)).float().sum(0).to(x.dtype)


@pytest.mark.parametrize("shape", [MB, MB67], ids=["1MB", "67MB"])
def test_nccl_all_reduce_alone(perf: PerfInRanks, shape: tuple[int, int]) -> None:
    """Of zeros, which stay what they are: nothing but the sum is in the time, and no answer can be checked."""
    held = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
    perf.time(lambda: dist.all_reduce(held), bytes=held.nbytes)


def test_one_shot_of_symmetric_memory(perf: PerfInRanks) -> None:
    import torch.distributed._symmetric_memory as symmetric

    assert dist.group.WORLD is not None
    held = symmetric.empty(KB128, dtype=torch.bfloat16, device=torch.device("cuda", perf.ranks.rank))
    symmetric.rendezvous(held, dist.group.WORLD)
    held.copy_(drawn(perf, KB128))
    name, one_shot = dist.group.WORLD.group_name, torch.ops.symm_mem.one_shot_all_reduce
    perf.time(lambda: one_shot(held, "sum", name), bytes=held.nbytes, reference=summed(perf, held))


def test_copy_from_the_next_rank(perf: PerfInRanks) -> None:
    shared, handle = perf.ranks.shared(MB67, torch.bfloat16)
    shared.copy_(drawn(perf, MB67))
    everybodys = perf.ranks.all(shared)
    theirs, own = handle.get_buffer(1 - perf.ranks.rank, MB67, torch.bfloat16), torch.empty_like(shared)
    perf.time(lambda: own.copy_(theirs), bytes=own.nbytes, reference=everybodys[1 - perf.ranks.rank])


def all_reduced(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y


@pytest.mark.parametrize("how", ["wrong", "killed", "hangs", "well"])
def test_ends(perf: PerfInRanks, how: str) -> None:
    x, is_last = drawn(perf, MB), perf.ranks.rank == 1
    all_reduced(x)
    if how == "killed" and is_last:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs" and is_last:
        time.sleep(600)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = all_reduced(x)
        y.view(-1)[5] += 9 * (how == "wrong" and is_last)
        return y

    perf.time(call, x, reference=lambda: summed(perf, x))
