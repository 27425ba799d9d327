"""What can be measured on this machine, and why the rest cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    what = "Show what can be measured on this machine, and why the rest cannot."
    return (Command("doctor", what, f"{__name__}.doctor_command:main", "look"),)
