"""How many processes (ranks) a test runs in, and the GPUs and the environment of each.

`@pytest.mark.perf_ranks(2)` makes one case run in two processes. A rank is such a process; it knows that it is one by
its environment, in which the same marker then means nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pytest_flashinfer_perf.api import stash
from pytest_flashinfer_perf.extensions.many import gpus
from pytest_flashinfer_perf.extensions.ranks.rank_times import BUS_FACTORS, MULTICAST

RANK = "FLASHINFER_PERF_RANK"  # set in each process of a case that several run together
FOLDER = "FLASHINFER_PERF_RANKS_FOLDER"  # where the ranks of a case meet and leave what they have to say
STARTER = "FLASHINFER_PERF_RANKS_STARTER"  # the process that starts a rank, and is its parent as long as it lives
# On a shared machine NVLink multicast can put GPUs out of service. These make NCCL, torch's symmetric memory, NVSHMEM
# and FlashInfer do without; FlashInfer asks for plain memory only where computing is confidential.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "FLASHINFER_CONFIDENTIAL_COMPUTE": "1",
}


def number(item: pytest.Item) -> int | None:
    """The number of processes that a test runs in; None for all others, and in one of those processes."""
    if RANK in os.environ:
        return None
    marker = item.get_closest_marker("perf_ranks")
    return _of_its_case(item) if marker is None else _of_marker(item, marker)


def is_together(item: pytest.Item) -> bool:
    """Whether a test is not for this process alone, also where nobody says how many it needs: a search of shapes."""
    is_marked = item.get_closest_marker("perf_ranks") is not None
    return RANK not in os.environ and (is_marked or _of_its_routine(item) is not None)


def _of_its_case(item: pytest.Item) -> int | None:
    ranks = _of_its_routine(item)
    case = stash.case_of(item) if ranks else None
    return ranks(case.params) if ranks and case else None


def _of_its_routine(item: pytest.Item) -> Callable[[Any], int] | None:
    """The function by which a routine between GPUs gives the number of ranks; this module imports no torch."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get("case", item.stash.get(stash.CASE, None))
    return getattr(getattr(case, "routine", None), "ranks", None)


def _of_marker(item: pytest.Item, marker: pytest.Mark) -> int:
    collective, numbers = marker.kwargs.get("collective"), marker.args
    number = item.config.getoption("perf_ranks") or (numbers[0] if numbers else None)
    if collective not in (None, *BUS_FACTORS) or marker.kwargs.keys() - {"collective"}:
        collectives = ", ".join(BUS_FACTORS)
        raise pytest.UsageError(f"{item.nodeid}: perf_ranks(n, collective=...) takes one of {collectives}")
    if len(numbers) > 1 or isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise pytest.UsageError(
            f"{item.nodeid}: perf_ranks takes the number of processes, as in perf_ranks(2) or --perf-ranks=2"
        )
    return number


def environment(number: int, rank: int, folder: str, *, no_multicast: bool) -> dict[str, str]:
    """The environment of a rank: torchrun's names, and nothing of the pytest session or worker that starts it."""
    dropped = ("PYTEST_", "GITHUB_STEP_SUMMARY", "FLASHINFER_PERF_CONFIRMS")
    own = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if gpus.ALL_GPUS in own:
        own[gpus.VISIBLE] = own[gpus.ALL_GPUS]
    if wants_no_multicast(own, option=no_multicast):
        own = {**NO_MULTICAST, **own, **(NO_MULTICAST if no_multicast else {})}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number}
    ours = {RANK: f"{rank}/{number}", FOLDER: folder, STARTER: str(os.getpid())}
    return {**own, **{name: str(value) for name, value in place.items()}, **ours}


def wants_no_multicast(environment: Mapping[str, str], *, option: bool) -> bool:
    """Whether ranks are to do without: whoever says so to one library means all to which nothing else is said."""
    return option or any(environment.get(name) == off for name, off in NO_MULTICAST.items())


def multicast(environment: Mapping[str, str] = os.environ) -> str:
    """Whether any of what this process may use could use NVLink multicast."""
    return "no multicast" if all(environment.get(name) == off for name, off in NO_MULTICAST.items()) else MULTICAST


def undecided(environment: Mapping[str, str], *, no_multicast: bool) -> str | None:
    """Why no case of the suite runs between GPUs yet: a machine that is shared must not get multicast by default."""
    if "NCCL_NVLS_ENABLE" in environment or wants_no_multicast(environment, option=no_multicast):
        return None
    return "may use NVLink multicast, which can put GPUs out of service: --perf-no-multicast, or NCCL_NVLS_ENABLE=1"
