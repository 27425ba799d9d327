"""What FlashInfer's tuner costs: every tactic timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command, Quantity

USES = ("compare",)  # the rules of the settings file, and a device that is locked


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "tune-report",
            "Time every tactic of FlashInfer's tuner, and show what its choices cost.",
            f"{__name__}.tune_report_command:main",
            "prepare",
        ),
    )


def pytest_perf_quantities() -> tuple[Quantity, ...]:
    """The limit of the tuner's choices, which `tune-report` judges."""
    from pytest_flashinfer_perf.api import Quantity
    from pytest_flashinfer_perf.extensions.tuner.judge import TunerLimits

    return (Quantity(TunerLimits),)
