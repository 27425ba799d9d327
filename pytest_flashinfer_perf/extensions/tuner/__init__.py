"""What FlashInfer's tuner and its heuristics cost: every tactic timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.cli.command import Command
    from pytest_flashinfer_perf.gate.quantity import Quantity


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.cli.command import Command

    return (
        Command(
            "tune-report",
            "Time every tactic of FlashInfer's tuner, and show what its choices cost.",
            f"{__name__}.tune_report_command:main",
        ),
    )


def pytest_perf_quantities() -> tuple[Quantity, ...]:
    """Limits of the tuner's choices, which `tune-report` judges."""
    from pytest_flashinfer_perf.extensions.tuner.judge import TunerLimits
    from pytest_flashinfer_perf.gate.quantity import Quantity

    return (Quantity(TunerLimits),)
