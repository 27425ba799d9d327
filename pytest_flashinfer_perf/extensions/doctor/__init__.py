"""What can be measured on this machine, and why the rest cannot.

Another extension says what it measures by the hook `pytest_perf_examined` (hooks.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_flashinfer_perf.extensions.doctor import hooks

    pluginmanager.add_hookspecs(hooks)


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    what = "Show what can be measured on this machine, and why the rest cannot."
    return (Command("doctor", what, f"{__name__}.doctor_command:main", "look"),)
