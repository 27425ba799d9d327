"""A report as one HTML page, of a session or of runs from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Run

OPTIONS = (
    option(
        "--perf-html",
        child=Child.NONE,
        writes="",
        metavar="FILE",
        help="Write a report of this run as one HTML page to FILE.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {"files that are read and written": OPTIONS}


def pytest_configure(config: pytest.Config) -> None:
    """Verify before anything is measured that a page can be made. A worker of xdist has a part of the rows alone."""
    if config.getoption("perf_html") and not (config.option.collectonly or hasattr(config, "workerinput")):
        from pytest_flashinfer_perf.extensions.pages.html_file import HtmlFile

        config.pluginmanager.register(HtmlFile(config), "flashinfer-perf-html")


def pytest_perf_report(runs: Sequence[Run], path: Path) -> bool:
    """Of whatever name: the formats of other extensions are asked for before."""
    from pytest_flashinfer_perf.extensions.pages import page

    page.write(path, runs)
    return True
