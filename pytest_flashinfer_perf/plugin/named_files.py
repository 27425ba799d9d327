"""The files among pytest's arguments: testlists, recordings, those of options, the list of `--perf-only`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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


def is_recording(path: Path) -> bool:
    if path.suffix != ".jsonl":
        return False
    from pytest_flashinfer_perf.extensions.traffic import recording

    return recording.is_recording(path)


def set_arguments(config: pytest.Config, settings: Settings) -> None:
    """Add the suite's folders for what is there only, and the files of --perf-testlist, to pytest's arguments."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if (settings.cases or settings.api or settings.model or settings.plan) and not named:
        from pytest_flashinfer_perf.plugin import cases

        step = cases.runs_a_step(settings.model, settings.step, settings.plan)
        if settings.cases or settings.api or step:
            config.args[:] = map(str, cases.asked_paths(api=settings.api, cases=settings.cases, step=step))
    if settings.testlists:
        asked = named or settings.cases or settings.api
        config.args[:] = [*(config.args if asked else ()), *settings.testlists]


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
