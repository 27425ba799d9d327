"""For the evidence of calls between GPUs: `-p planted_on_ranks` adds a copy over the link to each call of a routine.

PLANTED_FROM=RUN.json names a run of the same cases without it. The copy is from the next rank's memory, of as many
bytes as a link moves in PLANTED_SHARE (0.05) of the case's median there, by a kernel. It needs GPUs that a link joins.
"""

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pytest_flashinfer_perf.extensions.ranks import joined, links
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.spec.routine import Built

SHARE = float(os.environ.get("PLANTED_SHARE", "0.05"))
plain = _shared.built
running: list[str] = []  # the name of the test
kept: list[torch.Tensor] = []  # what other ranks copy from


@functools.cache
def medians() -> dict[str, float]:
    """Seconds by the test's name."""
    [run] = read.read([os.environ["PLANTED_FROM"]])
    return {row.name: row.median for row in run.rows}


@functools.cache
def copy() -> Callable[[], object]:
    """Made once in a process, which is a rank of one case: all placements copy through the same memory."""
    ranks = joined.here()
    assert ranks is not None
    count = max(4, int(SHARE * medians()[running[-1]] * links.roofs(ranks)["measured"] / torch.float32.itemsize))
    held, handle = ranks.shared((count,), torch.float32)
    theirs = handle.get_buffer((ranks.rank + 1) % ranks.size, (count,), torch.float32)
    kept.append(held.zero_())
    return functools.partial(torch.mul, theirs, 1.0, out=torch.empty_like(held))


def built(*args: Any, **kwargs: Any) -> Built[Any]:
    made = plain(*args, **kwargs)
    more = copy()

    def launch(x: Any) -> object:
        answer = made.launch(x)
        more()
        return answer

    return replace(made, launch=launch)


def pytest_configure() -> None:
    _shared.built = built


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    running.append(item.name)
