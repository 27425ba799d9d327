"""An ordinary test function for each line of a testlist, and for what a command line asks for and is not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf import collection, suite
from pytest_flashinfer_perf.formats import testlist
from pytest_flashinfer_perf.plugin import SETTINGS
from pytest_flashinfer_perf.report import unmeasured

if TYPE_CHECKING:
    from pytest_flashinfer_perf.fixture import Perf
    from pytest_flashinfer_perf.formats.testlist import Entry


class Testlist(pytest.File):
    def collect(self) -> list[pytest.Function]:
        settings = self.config.stash[SETTINGS]
        entries = testlist.read(self.path, settings.flags, settings.backends)
        if not entries:
            raise self.CollectError(f"{self.path}: no line asks for anything; one is --routine NAME and its flags")
        return [_item(self, entry) for entry in entries]


class WithoutCase(pytest.Collector):
    """What `--perf-case` asks for and only upstream has: skips, as in a testlist."""

    def collect(self) -> list[pytest.Function]:
        return [_item(self, entry) for entry in suite.without_case(self.config.stash[SETTINGS])]


def _item(parent: pytest.Collector, entry: Entry) -> pytest.Function:
    item = pytest.Function.from_parent(parent, name=entry.name, callobj=_call(entry))
    if entry.case is None:
        item.stash[unmeasured.IDENTITY] = entry.identity
        return item
    item.stash[collection.CASE] = entry.case
    for mark in collection.marks(entry.case):
        item.add_marker(mark)
    return item


def _call(entry: Entry) -> Callable[..., None]:
    case = entry.case
    if case is None:
        return lambda: _without_case(entry)

    def measured(perf: Perf) -> None:
        perf(case)

    return measured


def _without_case(entry: Entry) -> None:
    if entry.missing:
        pytest.skip(f"{entry.where}: {entry.missing}")
    pytest.fail(f"{entry.where}: {entry.problem}", pytrace=False)
