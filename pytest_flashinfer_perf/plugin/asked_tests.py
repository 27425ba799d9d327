"""The tests that options ask for, where none are named, and the list of `--perf-only`."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf import loading


def set_arguments(config: pytest.Config) -> None:
    """Add the tests that options ask for to the arguments of pytest, where none are named."""
    asked = [] if config.args_source is pytest.Config.ArgsSource.ARGS else asked_paths(config)
    if asked:
        config.args[:] = asked


def asked_paths(config: pytest.Config) -> list[str]:
    """Those of the suite, if a case of it is asked for, and those of extensions."""
    from pytest_flashinfer_perf.plugin import cases

    of_suite = cases.paths() if config.getoption("perf_case") else []
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
