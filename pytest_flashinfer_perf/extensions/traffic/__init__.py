"""What a program calls of FlashInfer, recorded and measured again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.cli.command import Command


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.cli.command import Command

    return (
        Command(
            "record",
            "Record what a program calls of FlashInfer, to measure exactly that.",
            f"{__name__}.record_command:main",
        ),
    )
