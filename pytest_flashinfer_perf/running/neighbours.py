"""Refuse other plugins and options that would intercept a test's calls, with an explanation."""

from __future__ import annotations

import sys

import pytest

from pytest_flashinfer_perf.runs.formatting import counted

PROFILED_ELSEWHERE = (
    "--benchmark-cprofile: nothing of tests with perf, whose calls are made before pytest-benchmark's: "
)
PROFILED_ELSEWHERE += (
    "python -m cProfile -m pytest ... sees the host's part, nsys and ncu the kernels' (docs/profile.md)"
)


def refuse_codspeed(config: pytest.Config, tests: int) -> None:
    """It is a plugin of https://github.com/CodSpeedHQ/pytest-codspeed, which takes pytest-benchmark's place."""
    codspeed = config.pluginmanager.get_plugin("codspeed_plugin")
    if getattr(codspeed, "is_codspeed_enabled", False):
        raise pytest.UsageError(
            "pytest-codspeed is active (--codspeed or CODSPEED_ENV) and has switched off pytest-benchmark, which writes"
            f" the rows of {counted(tests, 'test')} with perf here: run these with -p no:codspeed, and deselect them in"
            " its run"
        )


def notes(config: pytest.Config) -> list[str]:
    return [PROFILED_ELSEWHERE] if config.getoption("benchmark_cprofile", None) else []


def spare_hypothesis(config: pytest.Config) -> None:
    """Leave its plugin out of the summary, for which it imports all of hypothesis even if no test has used that."""
    manager = config.pluginmanager
    plugin, in_workers = manager.get_plugin("hypothesispytest"), manager.has_plugin("dsession")
    if plugin and not in_workers and "hypothesis" not in sys.modules:
        manager.unregister(plugin)
