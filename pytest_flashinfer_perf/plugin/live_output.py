"""What a run says before its end: how long it will take, if that is long, and each routine's table when it is complete.

Both need the tests of this process: where workers of xdist run them, tables come at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pytest

from pytest_flashinfer_perf.engine import one_case, stopping
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.plugin import terminal
from pytest_flashinfer_perf.plugin.results import Board
from pytest_flashinfer_perf.printing import Terminal, write_lines
from pytest_flashinfer_perf.rows.formatting import counted, wrapped
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.session.stash import case_of
from pytest_flashinfer_perf.settings.settings import Measuring
from pytest_flashinfer_perf.spec.case import Case

LONG_S = 120.0
CASE_S = 0.5  # of a case on an H200 (`case_s` of its row), and of a small one anywhere
SMALL = "smoke"


def announcement(cases: Iterable[Case | None], device: Device, how: Measuring) -> Iterator[str]:
    """Say how long a run will take that takes more than two minutes, and how to make it shorter."""
    running = [case for case in cases if case is None or one_case.refusal(case, device) is None]
    seconds = sum(_seconds(case, device, how) for case in running)
    if seconds > LONG_S:
        smaller = f"--perf-suite={SMALL}, " * any(case and case.tier not in (None, SMALL) for case in running)
        says = f"{counted(len(running), 'case')} to measure, about {seconds / 60:.0f} min"
        yield from wrapped(f"{says}; shorter by -k NAME, {smaller}--perf-iters=10")


def _seconds(case: Case | None, device: Device, how: Measuring) -> float:
    """The usual time of a case; of a large one on a CPU all that it may take."""
    is_quick = device.is_gpu or case is None or case.tier == SMALL
    return CASE_S if is_quick else stopping.WALL_FACTOR * how.max_time


class Tables:
    """Shows the table of each routine when its last case is done, but for the last routine's, which ends the run."""

    def __init__(self, board: Board, output: Terminal, items: Sequence[pytest.Item]) -> None:
        self._board, self._output = board, output
        self._routines = {item.nodeid: _routine(item) for item in items}
        self._left = Counter(self._routines.values())

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        routine = self._routines[nodeid]
        self._left[routine] -= 1
        if self._left[routine] == 0 and any(self._left.values()):
            rows = [row for row in self._board.rows_to_show if row.identity.routine == routine]
            self._show(rows)

    def _show(self, rows: Sequence[Row]) -> None:
        write_lines(self._output, terminal.tables(rows))
        self._board.shown.update(row.fullname for row in rows)


def _routine(item: pytest.Item) -> str | None:
    case = case_of(item)
    return case.routine.name if case else None
