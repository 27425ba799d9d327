"""Search for shapes with a wrong answer or a crash, instead of timing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Option, option, options
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import FOLDER, NAME, PROFILES, Fuzzing, is_finding

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import CaseRun
    from pytest_flashinfer_perf.extensions.fuzz.shape_search import Search
    from pytest_flashinfer_perf.spec.case import CaseOfTest
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

NO_SHAPES = "perf.time has no shapes to search: give it a strategy of your own with @given"

OPTIONS = (
    option(
        "--perf-fuzz",
        daily=True,
        action="store_true",
        help="Search for shapes with a wrong answer or a crash, instead of timing. One search for each backend.",
    ),
    option(
        "--perf-fuzz-flags",
        metavar="FLAGS",
        **options.REPEATABLE,
        help="Restrict the shapes that are searched to those with these flags. Repeat it for alternatives.",
    ),
    option(
        "--perf-fuzz-seconds",
        metavar="N",
        type=options.whole(1),
        help="Stop each search after N seconds. Default: after the examples of the hypothesis profile.",
    ),
    option(
        "--perf-findings",
        writes="any.json",
        metavar="DIR",
        help=f"Folder to write findings of searches to. Default: {FOLDER}.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.CHECKING: OPTIONS}


@pytest.hookimpl(specname="pytest_configure", tryfirst=True)
def pytest_configure_before_hypothesis(config: pytest.Config) -> None:
    """Register our profiles before hypothesis's plugin loads the one that is named."""
    if config.getoption("--hypothesis-profile", None) in PROFILES:
        from pytest_flashinfer_perf.extensions.fuzz import profiles

        profiles.register()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("perf_fuzz"):
        from pytest_flashinfer_perf.api import errors, file_io, stash, usage

        config.stash[stash.INSTEAD] = NO_SHAPES
        with usage.errors_of_use():
            errors.require("hypothesis", extra=NAME)
            if not config.option.collectonly:
                file_io.verify_outputs({"--perf-findings": Fuzzing.of(config).findings / "any.json"})


def pytest_perf_collects(path: Path) -> bool | None:
    return is_finding(path) or None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not (parent.session.isinitpath(file_path) and is_finding(file_path)):
        return None
    from pytest_flashinfer_perf.extensions.fuzz.as_test import FindingFile

    return FindingFile.from_parent(parent, path=file_path)


def pytest_perf_cases(config: pytest.Config, routine: AnyRoutine) -> Sequence[Search] | None:
    """A search for each backend, which ignores the shapes that the test lists."""
    if not config.getoption("perf_fuzz"):
        return None
    from pytest_flashinfer_perf.api import SETTINGS, cases
    from pytest_flashinfer_perf.extensions.fuzz.shape_search import Search

    return [Search(routine, backend) for backend in cases.backends_of(routine, config.stash[SETTINGS])]


def pytest_perf_run_case(item: pytest.Item, case: CaseOfTest) -> CaseRun | None:
    """The search, or the case, is launched and checked in a child process: that of a finding in any session."""
    if not (item.config.getoption("perf_fuzz") or is_finding(item.path)):
        return None
    from pytest_flashinfer_perf.extensions.fuzz import as_test

    return as_test.run(case, item)


def pytest_perf_terminal(config: pytest.Config) -> Iterable[str]:
    from pytest_flashinfer_perf.api import BOARD
    from pytest_flashinfer_perf.extensions.fuzz import summary

    return summary.lines(config.stash[BOARD].parts(NAME))
