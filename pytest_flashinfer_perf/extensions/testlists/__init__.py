"""FlashInfer's own benchmark script: its command lines, its CSV and the lines that it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.case import Case, FlagLine
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

USES = ("apis",)  # which many of its routines are here


def pytest_perf_line(words: Sequence[str], routines: Mapping[str, AnyRoutine]) -> FlagLine | None:
    if any(word.partition("=")[0] == "--api" for word in words):
        return None
    from pytest_flashinfer_perf.extensions.testlists import script_lines

    return script_lines.parse(list(words), routines)


def pytest_perf_repeat(case: Case) -> str | None:
    from pytest_flashinfer_perf.extensions.testlists import upstream_command

    return upstream_command.command(case)
