"""`-p ranks_in_turn`: of several sessions on the same GPUs, one at a time has ranks that have joined their group.

Most of a case's seconds go into imports, which one session's ranks can do while another's measure. Sessions with a
TMPDIR of their own have locks of their own, and RANKS_TURN names the file that their ranks lock instead.
"""

import fcntl
import os
from typing import IO

import pytest

from pytest_flashinfer_perf.extensions.ranks.asked import RANK

held: list[IO[str]] = []  # until the process ends


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The first rank waits for its turn, and the others wait for the first."""
    if os.environ.get(RANK, "").startswith("0/"):
        held.append(open(os.environ["RANKS_TURN"], "w"))  # noqa: PTH123, SIM115
        fcntl.flock(held[-1], fcntl.LOCK_EX)
