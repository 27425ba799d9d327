"""The pytest plugin of a process that tunes or races (`-p`): cases are selected as usual, and looked at one by one.

What it finds is written line by line, so that a tactic that kills the process costs no more than itself: whoever
started the process starts it again, and says which tactic to leave out.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import (
    SETTINGS,
    FlashinferPerfError,
    builds,
    errors,
    file_io,
    garbage,
    one_case,
    provenance,
    setup,
    stash,
    time_limit,
)
from pytest_flashinfer_perf.engine import autotune
from pytest_flashinfer_perf.engine.repeated import RepeatedCase
from pytest_flashinfer_perf.extensions.tuner import contest, search, tactics
from pytest_flashinfer_perf.extensions.tuner.contest import NO_GPU, OTHER_INPUTS, SpoiledError
from pytest_flashinfer_perf.extensions.tuner.search import TuneJob
from pytest_flashinfer_perf.spec.case import Case

PLUGIN = __name__
SPOILED = {NO_GPU: 86, OTHER_INPUTS: 87}  # exit codes of a process in which no other tactic can be timed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tuner-job", metavar="FILE", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    job = TuneJob(**file_io.read_json(config.getoption("tuner_job")))
    config.pluginmanager.register(TunerLoop(config, job), "flashinfer-perf-tuner-loop")


class TunerLoop:
    """Replaces pytest's loop over tests; the device is found before, by the hooks of the plugin itself."""

    def __init__(self, config: pytest.Config, job: TuneJob) -> None:
        self._config = config
        self._job = job

    @cached_property
    def _limit(self) -> time_limit.Limit | None:
        """Asked for with the first case: the plugin's own hooks may have joined only when that was collected."""
        seconds = self._config.getoption("perf_timeout")
        return time_limit.Limit(seconds, self._config.stash[setup.STDERR]) if seconds else None

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:  # pytest itself reports collection errors
            return None
        tests = ((item.nodeid, case) for item in session.items if (case := stash.case_of(item)) is not None)
        cases = {case.identity.case: (test, case) for test, case in tests}.values()
        if not cases:
            raise pytest.UsageError("no tuner to look at: these arguments select no test with a case")
        self._verify()
        facts = {**provenance.versions(), "gpu_uuid": self._config.stash[stash.DEVICE].uuid}
        versions = {name: v and str(v) for name, v in facts.items()}
        self._job.say("begins", versions=versions, cases=[case.identity.case for _, case in cases])
        try:
            for test, case in cases:
                if case.identity.case not in self._job.done:
                    self._one(test, case)
        except SpoiledError as error:
            os._exit(SPOILED[str(error)])
        self._job.say("end")
        return True

    def _verify(self) -> None:
        """Raise for settings with which no case could be answered."""
        if self._config.stash[SETTINGS].checking.refcheck != "on":
            raise pytest.UsageError("tune-report checks every tactic and times it: leave out --perf-refcheck")
        try:
            if self._job.cache:
                autotune.verify(self._job.cache, tune=False)
        except FlashinferPerfError as error:
            raise pytest.UsageError(str(error)) from error

    def _one(self, test: str, case: Case) -> None:
        """A case ends with a line, whatever happens to it; a part of it that takes too long ends the process."""
        job, name, device = self._job, case.identity.case, self._config.stash[stash.DEVICE]
        job.say("starts", case=name)
        try:
            with self._limit.of_one() if self._limit else nullcontext():
                result = self._looked_at(test, case)
        except SpoiledError:
            raise
        except Exception as error:  # noqa: BLE001 - the other cases have tactics too
            contest.verify_alive(device, error)
            result = {"outcome": "failed", "why": errors.in_one_line(error)}
        device.give_back_memory()
        job.say("case", case=name, **result)

    def _looked_at(self, test: str, case: Case) -> dict[str, Any]:
        settings, device = self._config.stash[SETTINGS], self._config.stash[stash.DEVICE]
        if reason := one_case.obstacle(case, device, settings.max_memory):
            return {"outcome": "skipped", "why": reason}
        builds.watch()
        if device.is_gpu:
            garbage.freeze_imports()
        if self._job.tune:
            unchecked = replace(settings.checking, refcheck="off")
            call = RepeatedCase(case, settings.measuring, unchecked, device).call
            return {"picked": asdict(tactics.tuned(call))}
        result = search.race_case(test, case, settings, device, self._job)
        if result is None:
            return {"outcome": "skipped", "why": "it asks FlashInfer's tuner nothing"}
        return {"found": asdict(result)}
