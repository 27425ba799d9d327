"""Items of files: an ordinary test function for each line of a testlist."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.flashinfer_benchmark import testlist
from pytest_flashinfer_perf.plugin import SETTINGS, collection
from pytest_flashinfer_perf.running import unmeasured

if TYPE_CHECKING:
    from pytest_flashinfer_perf.flashinfer_benchmark.testlist import Entry
    from pytest_flashinfer_perf.plugin.fixture import Perf


class Testlist(pytest.File):
    def collect(self) -> list[pytest.Function]:
        settings = self.config.stash[SETTINGS]
        entries = testlist.read(self.path, settings.flags, settings.backends)
        if not entries:
            raise self.CollectError(f"{self.path}: no line asks for anything; one is --routine NAME and its flags")
        return [self._item(entry) for entry in entries]

    def _item(self, entry: Entry) -> pytest.Function:
        item = pytest.Function.from_parent(self, name=entry.name, callobj=_call(entry))
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
