"""The files among pytest's arguments: testlists, those of options, the list of `--perf-only`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.session.stash import SETTINGS

if TYPE_CHECKING:
    from pytest_flashinfer_perf.settings.settings import Settings


def is_testlist(path: Path, config: pytest.Config) -> bool:
    if any(path.samefile(config.invocation_params.dir / name) for name in config.stash[SETTINGS].testlists):
        return True
    if path.suffix != ".txt":
        return False
    from pytest_flashinfer_perf.extensions.testlists import testlist

    return testlist.is_testlist(path)


def set_arguments(config: pytest.Config, settings: Settings) -> None:
    """Add the tests that options ask for, where none are named, and the files of --perf-testlist."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    asked = [] if named else asked_paths(config)
    if asked:
        config.args[:] = asked
    if settings.testlists:
        config.args[:] = [*(config.args if named or asked else ()), *settings.testlists]


def asked_paths(config: pytest.Config) -> list[str]:
    """Those of the suite, if a case of it is asked for, and those of extensions."""
    from pytest_flashinfer_perf.plugin import cases

    of_suite = cases.paths() if config.stash[SETTINGS].cases else []
    return list(dict.fromkeys(map(str, (*of_suite, *loading.joined(config.hook.pytest_perf_paths(config=config))))))


def keep_only(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but those that the file of `--perf-only` lists."""
    path = config.invocation_params.dir / config.getoption("perf_only")
    try:
        asked = set(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise pytest.UsageError(f"--perf-only: {error}") from error
    others = [item for item in items if item.nodeid not in asked]
    items[:] = [item for item in items if item.nodeid in asked]
    config.hook.pytest_deselected(items=others)
