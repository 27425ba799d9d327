"""`--perf-resume`: an interrupted run goes on, from the journal that each run with `--benchmark-json` keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options, stash

OPTIONS = (
    option(
        "--perf-resume",
        daily=True,
        child=Child.NONE,
        action="store_true",
        help="Continue the run of this --benchmark-json, if it was interrupted: keep what it has finished.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.LONG_RUNS: OPTIONS}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("perf_resume") or stash.is_worker(config):
        from pytest_flashinfer_perf.extensions.resume import resuming

        resuming.brief_of(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    from pytest_flashinfer_perf.extensions.resume import resuming

    resuming.send(node)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Before the first case, where the core has made this process ready: its hooks join later and come first."""
    from pytest_flashinfer_perf.api import setup

    if session.config.pluginmanager.hasplugin(setup.CASE_GUARD):
        from pytest_flashinfer_perf.extensions.resume import resuming

        resuming.begin(session.config)
