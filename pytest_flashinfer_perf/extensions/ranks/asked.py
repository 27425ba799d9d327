"""What is asked of a test that runs in several processes: how many ranks, and with which GPUs and environment.

`@pytest.mark.perf_ranks(2)` makes one case run in two processes. A rank is such a process; it knows that it is one by
its environment, in which the same marker then means nothing.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.extensions.ranks.rank_times import MULTICAST
from pytest_flashinfer_perf.session.stash import DEVICE, RANK, SETTINGS
from pytest_flashinfer_perf.session.workers import ALL_GPUS, VISIBLE

FOLDER = "FLASHINFER_PERF_RANKS_FOLDER"  # where the ranks of a case meet and leave what they have to say
STARTER = "FLASHINFER_PERF_RANKS_STARTER"  # the process that starts a rank, and is its parent as long as it lives
# On a host that several users share, NVLink multicast can put GPUs out of service. These make NCCL, torch's symmetric
# memory, NVSHMEM and FlashInfer do without; FlashInfer asks for plain memory only where computing is confidential.
NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "FLASHINFER_CONFIDENTIAL_COMPUTE": "1",
}


class RanksError(FlashinferPerfError):
    """The processes of a case cannot be started here."""


def environment(number: int, rank: int, folder: str, *, no_multicast: bool) -> dict[str, str]:
    """The environment of a rank: torchrun's names, and nothing of the pytest session or worker that starts it."""
    dropped = ("PYTEST_", "GITHUB_STEP_SUMMARY", "FLASHINFER_PERF_CONFIRMS")
    own = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    if ALL_GPUS in own:
        own[VISIBLE] = own[ALL_GPUS]
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
    """Why no case of the suite runs between GPUs yet: a host that is shared must not get multicast by default."""
    if "NCCL_NVLS_ENABLE" in environment or wants_no_multicast(environment, option=no_multicast):
        return None
    return "may use NVLink multicast, which can put GPUs out of service: --perf-no-multicast, or NCCL_NVLS_ENABLE=1"


def locks(item: pytest.Item, number: int) -> list[str]:
    """The names of the locks that the test needs: one for each GPU, or that of the CPU where workers take turns."""
    uuids = gpus() if item.config.stash[DEVICE].is_gpu else []
    if not uuids:
        alone = not hasattr(item.config, "workerinput") or item.config.stash[SETTINGS].device == "cpu:any"
        return [] if alone else ["cpu"]
    if len(uuids) < number:
        visible = os.environ.get(ALL_GPUS, os.environ.get(VISIBLE, "all"))
        pytest.skip(f"needs {number} GPUs of one host, {len(uuids)} can be seen ({VISIBLE}={visible})")
    return uuids[:number]


def gpus() -> list[str]:
    """The UUIDs of all GPUs that the session may use: a worker of xdist sees only its own."""
    import torch

    return _uuids(os.environ.get(ALL_GPUS, os.environ.get(VISIBLE))) if torch.cuda.device_count() else []


@functools.cache
def _uuids(visible: str | None) -> list[str]:
    """Asked of another process, since what a process can see is settled when it first looks."""
    seen = {} if visible is None else {VISIBLE: visible}
    program = (
        "import json, torch; count = torch.cuda.device_count(); "
        "print(json.dumps([f'GPU-{torch.cuda.get_device_properties(i).uuid}' for i in range(count)]))"
    )
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program], env={**os.environ, **seen}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RanksError(f"the GPUs of this host could not be listed: {done.stderr.strip()[-300:]}")
    uuids: list[str] = json.loads(done.stdout.splitlines()[-1])
    return uuids
