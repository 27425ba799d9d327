"""A model by its config.json, the kernels that one GPU of its deployment runs in a step, and the time of that step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.cli.command import Command
    from pytest_flashinfer_perf.gate.verdict import Summing


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.cli.command import Command

    return (
        Command(
            "model", "Show the GPU time of one step of a model, kernel by kernel.", f"{__name__}.model_command:main"
        ),
    )


def pytest_perf_sums() -> tuple[Summing, ...]:
    from pytest_flashinfer_perf.extensions.models.verdicts import SUMS

    return (SUMS,)
