"""Reports of runs for reading elsewhere: Markdown, one HTML page, the summary of a GitHub job.

Another extension adds a section by the hook `pytest_perf_sections` (hooks.py).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

USES = ("compare",)  # how the summary of a job is written, and the rules of the settings file

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

HTML = option(
    "--perf-html",
    child=Child.NONE,
    writes="",
    metavar="FILE",
    help="Write a report of this run as one HTML page to FILE.",
)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_flashinfer_perf.extensions.reports import hooks

    pluginmanager.add_hookspecs(hooks)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.FILES: (HTML,)}


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "report",
            "Write a report of runs as an HTML page or as Markdown.",
            f"{__name__}.report_command:main",
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    """A worker of xdist has a part of the rows alone."""
    if config.option.collectonly or hasattr(config, "workerinput"):
        return
    is_page = config.getoption(HTML.dest)
    is_gated = config.getoption("perf_gate") is not None or config.getoption("perf_save_baseline")
    is_summed_up = os.environ.get("GITHUB_STEP_SUMMARY") and not is_gated
    if is_page or is_summed_up:
        from pytest_flashinfer_perf.extensions.reports.of_session import HtmlFile, JobSummary

        if is_page:
            config.pluginmanager.register(HtmlFile(config), "flashinfer-perf-html")
        if is_summed_up:
            config.pluginmanager.register(JobSummary(), "flashinfer-perf-summary")
