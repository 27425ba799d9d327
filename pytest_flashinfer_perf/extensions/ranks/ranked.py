"""Tests that several processes make together: those marked by perf_ranks, and cases of routines between GPUs.

Here nothing of such a test is set up but `perf`, which waits for its devices and records the row: its own fixtures are
those of the ranks, each of which is a session of its own (`ranks/group.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from pytest_flashinfer_perf.extensions.ranks import group
from pytest_flashinfer_perf.extensions.ranks.group import End
from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.plugin.fixture import Perf
from pytest_flashinfer_perf.session.case_endings import KILLED
from pytest_flashinfer_perf.session.reports import CaseReport
from pytest_flashinfer_perf.session.stash import DEVICE, OUTCOME, REPEAT, measures, ranks
from pytest_flashinfer_perf.session.time_limit import not_counted
from pytest_flashinfer_perf.settings.option import Child

LEFT = ("perf", "benchmark")
LAST_LINES = 20
DUMPED = r"Timeout \(|Fatal Python error: "  # what faulthandler writes, of which the cause has the lines that matter


def prepare(items: Sequence[pytest.Item]) -> None:
    """Leave their fixtures to the ranks; raises UsageError for a test that could not be one case."""
    for item in items:
        if ranks(item) is None:
            continue
        if not isinstance(item, pytest.Function) or not measures(item):
            raise pytest.UsageError(f"{item.nodeid}: perf_ranks is for tests that measure: give it the fixture perf")
        item.fixturenames = [*LEFT]


def run(item: pytest.Function) -> None:
    """Run it in its ranks, and fail, skip or record it as they say."""
    number = ranks(item)
    assert number is not None
    perf = item.funcargs["perf"]
    assert isinstance(perf, Perf)
    perf.skip_what_cannot_run()
    limit = item.config.getoption("perf_timeout")
    with not_counted():  # each rank has this limit itself, and says what it was doing
        ends = group.run(item, number, partial(_options, item.config), limit)
    _judge(item, perf, ends)


def _options(config: pytest.Config, rank: int) -> Iterator[str]:
    """Which cases a rank has and how it times and checks them: as this session, on a GPU of its own."""
    for one in options.of_all(config):
        value = getattr(config.option, one.dest)
        if one.child is Child.SAME and value != one.default:
            values = value if isinstance(value, list) else [value]
            yield from (one.name if given is True else f"{one.name}={given}" for given in values)
    yield f"--benchmark-max-time={config.getoption('benchmark_max_time')}"
    if config.getoption("benchmark_disable"):
        yield "--benchmark-disable"
    yield f"--perf-device=cuda:{rank}" if config.stash[DEVICE].is_gpu else "--perf-device=cpu"


def _judge(item: pytest.Function, perf: Perf, ends: Sequence[End]) -> None:
    bad = sorted((end for end in ends if end.outcome in ("failed", "died", "ended")), key=_cause_first)
    skipped = [end for end in ends if end.outcome == "skipped"]
    first = next(iter([*bad, *skipped]), None)
    if first is not None and first.carried.repeat:
        item.stash[REPEAT] = first.carried.repeat
    if bad:
        _show(item, bad)
        if bad[0].ended:
            item.stash[OUTCOME] = bad[0].ended
        perf.leave_out()
        pytest.fail("\n".join(f"rank {end.rank} of {len(ends)}: {end.sentence}" for end in bad), pytrace=False)
    if skipped:
        perf.leave_out()
        pytest.skip(skipped[0].sentence)
    carried = [end.carried for end in ends]
    perf.measured_by_ranks(next(filter(_is_wrong, carried), carried[0]))


def _is_wrong(carried: CaseReport) -> bool:
    """Where a wrong answer is allowed, the row is that of a rank which gave one."""
    return carried.checked == "wrong" or (carried.row is not None and carried.row.is_wrong)


def _cause_first(end: End) -> tuple[bool, bool, float]:
    """The first that failed made the others fail; those that had to be ended come last.

    A process that was killed is the cause whenever it was gone: the others notice before the driver of its GPU is done.
    """
    return end.outcome == "ended", end.ended != KILLED, end.at


def _show(item: pytest.Item, bad: Sequence[End]) -> None:
    for end in bad:
        text = end.report.longreprtext if end.report is not None else re.split(DUMPED, end.printed)[0]
        item.add_report_section("call", f"rank {end.rank}", "\n".join(text.strip().splitlines()[-LAST_LINES:]))
