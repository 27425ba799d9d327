"""Wrap each case: time limit, and what happens to the other cases when one ends the process."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.machine import device_errors
from pytest_flashinfer_perf.session import reports
from pytest_flashinfer_perf.session.stash import OUTCOME, forget, measures, repeat
from pytest_flashinfer_perf.session.time_limit import Limit, not_counted

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device

REMEDY = "run with -n 1, and each such case costs itself alone"


class CaseGuard:
    """Applies the time limit of each case, and fails the cases after one that broke CUDA's context."""

    def __init__(self, device: Device, limit: Limit | None) -> None:
        self._device = device
        self._limit = limit
        self._poison: str | None = None
        self._failed = False
        self._repeat = ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not measures(item):
            return (yield)
        self._repeat = repeat(item)
        with self._limit.of_one() if self._limit else nullcontext():
            done = yield
            if self._failed and self._poison is None:
                # Python keeps the last error for a debugger, and with it whatever its frames had.
                for name in ("last_type", "last_value", "last_traceback", "last_exc"):
                    vars(sys).pop(name, None)
                self._device.give_back_memory()
        self._failed = False
        return done

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not measures(item):
            return
        forget(item)
        if self._poison is not None:
            pytest.fail(self._poison, pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait for the GPU, so that an error of a kernel is attributed to this case."""
        done = yield
        if measures(item):
            self._device.synchronize()
        return done

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" and measures(item):
            reports.add(report, repeat=self._repeat)
        if call.excinfo is not None and report.failed and measures(item):
            self._failed = True
            if self._poison is None:
                self._note_end(item, report, call.excinfo.value)
        return report

    def _note_end(self, item: pytest.Item, report: pytest.TestReport, error: BaseException) -> None:
        outcome = item.stash.get(OUTCOME, None) or device_errors.name_of(error)
        if self._is_broken(outcome):
            outcome = outcome or device_errors.CUDA_ERROR
            self._poison = (
                f"not run: {item.nodeid} ended with {outcome}, CUDA's context in this process is lost: {REMEDY}"
            )
            reports.add(report, is_poisoned=True)
        if outcome is not None:
            reports.add(report, ended=outcome)
            report.sections.append(("ended with", outcome))

    def _is_broken(self, outcome: str | None) -> bool:
        """Whether CUDA's context is lost; a GPU is touched to find out, since not each error ends it."""
        if not self._device.is_gpu:
            return outcome in device_errors.STICKY
        try:
            self._device.touch()
        except RuntimeError as error:
            return device_errors.name_of(error) != device_errors.OUT_OF_MEMORY
        return False

    @pytest.hookimpl(wrapper=True)
    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> Generator[None, object, object]:
        """Restart the case's clock: pytest stops faulthandler's here."""
        done = yield
        if not node.config.getoption("usepdb"):
            with not_counted():
                pass
        return done
