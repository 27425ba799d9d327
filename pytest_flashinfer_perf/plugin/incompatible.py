"""Other plugins and options that would intercept a test's calls, and what becomes of the test then."""

from __future__ import annotations

import sys

import pytest

PROFILED_ELSEWHERE = (
    "--benchmark-cprofile: nothing of tests with perf, whose calls are made before pytest-benchmark's: "
)
PROFILED_ELSEWHERE += (
    "python -m cProfile -m pytest ... sees the host's part, nsys and ncu the kernels' (docs/profile.md)"
)


CODSPEED = (
    "pytest-codspeed is active (--codspeed or CODSPEED_ENV) and has switched off pytest-benchmark, which writes the"
    " rows of tests with perf: run these with -p no:codspeed"
)


def is_codspeed_active(config: pytest.Config) -> bool:
    """It is a plugin of https://github.com/CodSpeedHQ/pytest-codspeed, which takes pytest-benchmark's place."""
    codspeed = config.pluginmanager.get_plugin("codspeed_plugin")
    return bool(getattr(codspeed, "is_codspeed_enabled", False))


def notes(config: pytest.Config) -> list[str]:
    return [PROFILED_ELSEWHERE] if config.getoption("benchmark_cprofile", None) else []


def spare_hypothesis(config: pytest.Config) -> None:
    """Leave its plugin out of the summary, for which it imports all of hypothesis even if no test has used that."""
    manager = config.pluginmanager
    plugin, in_workers = manager.get_plugin("hypothesispytest"), manager.has_plugin("dsession")
    if plugin and not in_workers and "hypothesis" not in sys.modules:
        manager.unregister(plugin)
