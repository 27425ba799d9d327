"""A pytest item for an entry of a file or of an option: a case, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.plugin import cases, collection
from pytest_flashinfer_perf.session.stash import CASE, IDENTITY, LINE, SETTINGS

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf
    from pytest_flashinfer_perf.plugin.lines import Entry


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
