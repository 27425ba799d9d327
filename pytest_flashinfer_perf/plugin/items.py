"""pytest items made from files: one for each line of a testlist."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.extensions.testlists import testlist
from pytest_flashinfer_perf.plugin import cases, collection
from pytest_flashinfer_perf.session.stash import CASE, IDENTITY, LINE, SETTINGS

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf
    from pytest_flashinfer_perf.plugin.lines import Entry


class Testlist(pytest.File):
    def collect(self) -> list[pytest.Function]:
        settings = self.config.stash[SETTINGS]
        entries = testlist.read(self.path, settings.flags, settings.backends)
        if not entries:
            raise self.CollectError(f"{self.path}: has no case: write a line such as --routine NAME with its flags")
        return [of_entry(self, entry) for entry in entries]


class WithoutCase(pytest.Collector):
    """Lines of `--perf-case` that are valid and have no case here."""

    def collect(self) -> list[pytest.Function]:
        return [of_entry(self, entry) for entry in cases.without_case(self.config.stash[SETTINGS])]


def of_entry(parent: pytest.Collector, entry: Entry) -> pytest.Function:
    """A test that measures the case, or has the reason why there is none."""
    item = pytest.Function.from_parent(parent, name=entry.name, callobj=_call(entry))
    if entry.case is None:
        item.stash[IDENTITY], item.stash[LINE] = entry.identity, entry.where
        return item
    item.stash[CASE] = entry.case
    for mark in collection.marks(entry.case):
        item.add_marker(mark)
    return item


def _call(entry: Entry) -> Callable[..., None]:
    case = entry.case

    def without_case() -> None:
        if entry.missing:
            pytest.skip(f"{entry.where}: {entry.missing}")
        pytest.fail(f"{entry.where}: {entry.problem}", pytrace=False)

    if case is None:
        return without_case

    def measured(perf: Perf) -> None:
        perf(case)

    return measured
