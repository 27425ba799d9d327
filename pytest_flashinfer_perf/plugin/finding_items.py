"""A finding's file as a test: its case launched and checked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.fuzz import findings
from pytest_flashinfer_perf.plugin import collection
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.params import ParamError

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf
    from pytest_flashinfer_perf.spec.case import Case


class FindingFile(pytest.File):
    def collect(self) -> list[pytest.Function]:
        try:
            [case] = cases.read(findings.line_of(self.path), all_routines())
        except (ValueError, ParamError) as error:
            raise self.CollectError(f"{self.path}: {error}") from error
        item = pytest.Function.from_parent(self, name=f"{case.routine.name}[{case.id}]", callobj=_call(case))
        for mark in collection.marks(case):
            item.add_marker(mark)
        return [item]


def _call(case: Case) -> Callable[..., None]:
    def again(perf: Perf) -> None:
        perf.attempt(case)

    return again
