"""Reports of runs for reading elsewhere: Markdown, one HTML page, and a case's numbers in JUnit's XML.

Another extension adds a section by the hook `pytest_perf_sections` (hooks.py).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options, stash

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

HTML = option(
    "--perf-html",
    daily=True,
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
            "look",
        ),
    )


def pytest_configure(config: pytest.Config) -> None:
    """A worker of xdist has a part of the rows alone."""
    if config.getoption(HTML.dest) and not config.option.collectonly and not stash.is_worker(config):
        from pytest_flashinfer_perf.extensions.reports.of_session import HtmlFile

        config.pluginmanager.register(HtmlFile(config), "flashinfer-perf-html")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give a case's numbers to JUnit's XML, and to whatever else shows a test's `user_properties`."""
    from pytest_flashinfer_perf.api import reports

    report = yield
    if row := reports.of(report).row:
        from pytest_flashinfer_perf.extensions.reports import properties

        for user_properties in (item.user_properties, report.user_properties):
            properties.put(row, user_properties)
    return report
