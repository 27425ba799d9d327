"""Tests that several processes make together: those marked by perf_ranks, and cases of routines between GPUs.

Here nothing of such a test is set up but `perf`, which waits for its devices and records the row: its own fixtures are
those of the ranks, each of which is a session of its own (`ranks/group.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import pytest

from pytest_flashinfer_perf.api import SETTINGS, Child, Perf, one_case, reports, stash, time_limit
from pytest_flashinfer_perf.extensions.many import case_endings, gpus
from pytest_flashinfer_perf.extensions.ranks import group, joined, rank_environment
from pytest_flashinfer_perf.extensions.ranks.group import End
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import quarantined

LEFT = ("perf", "benchmark")
LAST_LINES = 20
DUMPED = r"Timeout \(|Fatal Python error: "  # what faulthandler writes, of which the cause has the lines that matter


class PerfInRanks(Perf):
    """What the fixture `perf` is in such a test, for those who check types."""

    ranks: Ranks


@dataclass(frozen=True)
class NoRanks:
    """What `perf.ranks` is in all other tests."""

    test: str

    def __getattr__(self, name: str) -> NoReturn:
        raise pytest.UsageError(f"{self.test}: perf.ranks.{name} needs @pytest.mark.perf_ranks(n)")


def complete(perf: PerfInRanks, test: str) -> None:
    """Give it the processes that run this test together, if this one is among them."""
    together = joined.here()
    if together is None:
        vars(perf)["ranks"] = NoRanks(test)
        return
    from pytest_flashinfer_perf.extensions.ranks import timing

    perf.ranks = together
    perf.time_calls = partial(timing.run, together)


def prepare(item: pytest.Item) -> None:
    """Leave its fixtures to the ranks; raises UsageError for a test that could not be one case."""
    if not isinstance(item, pytest.Function) or not stash.measures(item):
        raise pytest.UsageError(f"{item.nodeid}: perf_ranks is for tests that measure: give it the fixture perf")
    item.fixturenames = [*LEFT]


def run(item: pytest.Function) -> None:
    """Run it in its ranks, and fail, skip or keep it as they say."""
    perf = item.funcargs["perf"]
    assert isinstance(perf, Perf)
    perf.measured_by_others(partial(_measured, item))


def _measured(item: pytest.Function) -> reports.CaseReport:
    number = rank_environment.number(item)
    if number is None or stash.INSTEAD in item.config.stash:
        pytest.skip("the call is one of several processes, which are started to time it")
    if reason := _obstacle(item, number):
        pytest.skip(reason)
    limit = item.config.getoption("perf_timeout")
    with time_limit.not_counted():  # each rank has this limit itself, and says what it was doing
        ends = group.run(item, number, partial(_options, item.config), limit)
    return _judged(item, ends)


def _obstacle(item: pytest.Item, number: int) -> str | None:
    """Why the test cannot run here, which is known before its processes are started."""
    device, settings, case = item.config.stash[stash.DEVICE], item.config.stash[SETTINGS], stash.case_of(item)
    if device.is_gpu and (visible := len(gpus.of_session())) < number:
        names = os.environ.get(gpus.ALL_GPUS, os.environ.get(gpus.VISIBLE, "all"))
        return f"needs {number} GPUs of one machine, {visible} can be seen ({gpus.VISIBLE}={names})"
    if case is None:
        return None
    quarantine = quarantined(case, settings.quarantine, all_routines())
    reason = quarantine.sentence if quarantine else one_case.obstacle(case, device, settings.max_memory)
    if reason or not device.is_gpu:
        return reason
    return rank_environment.undecided(os.environ, no_multicast=item.config.getoption("perf_no_multicast"))


def _options(config: pytest.Config, rank: int) -> Iterator[str]:
    """Options that give a rank this session's cases and settings, and a GPU of its own."""
    for one in options.of_all(config):
        value = getattr(config.option, one.dest)
        if one.child is Child.SAME and value != one.default:
            values = value if isinstance(value, list) else [value]
            yield from (one.name if text is True else f"{one.name}={text}" for text in values)
    yield f"--benchmark-max-time={config.getoption('benchmark_max_time')}"
    if config.getoption("benchmark_disable"):
        yield "--benchmark-disable"
    yield f"--perf-device=cuda:{rank}" if config.stash[stash.DEVICE].is_gpu else "--perf-device=cpu"


def _judged(item: pytest.Function, ends: Sequence[End]) -> reports.CaseReport:
    bad = sorted((end for end in ends if end.outcome in ("failed", "died", "ended")), key=_cause_first)
    skipped = [end for end in ends if end.outcome == "skipped"]
    first = next(iter([*bad, *skipped]), None)
    if first is not None and first.carried.repeat:
        item.stash[stash.REPEAT] = first.carried.repeat
    if bad:
        _show(item, bad)
        if bad[0].ended:
            item.stash[stash.OUTCOME] = bad[0].ended
        pytest.fail("\n".join(f"rank {end.rank} of {len(ends)}: {end.sentence}" for end in bad), pytrace=False)
    if skipped:
        pytest.skip(skipped[0].sentence)
    carried = [end.carried for end in ends]
    return next(filter(_is_wrong, carried), carried[0])


def _is_wrong(carried: reports.CaseReport) -> bool:
    """Whether a rank gave a wrong answer: its row is the one to keep where wrong answers are allowed."""
    return carried.checked == "wrong" or (carried.row is not None and carried.row.is_wrong)


def _cause_first(end: End) -> tuple[bool, bool, float]:
    """The first that failed made the others fail; those that had to be ended come last.

    A process that was killed is the cause whenever it was gone: the others notice before the driver of its GPU is done.
    """
    return end.outcome == "ended", end.ended != case_endings.KILLED, end.at


def _show(item: pytest.Item, bad: Sequence[End]) -> None:
    for end in bad:
        text = end.report.longreprtext if end.report is not None else re.split(DUMPED, end.printed)[0]
        item.add_report_section("call", f"rank {end.rank}", "\n".join(text.strip().splitlines()[-LAST_LINES:]))
