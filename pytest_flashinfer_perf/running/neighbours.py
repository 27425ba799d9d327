"""Other plugins and options that want a test's calls for themselves: a sentence, instead of a figure that is none."""

from __future__ import annotations

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
