"""Verdicts on stored runs, and verdicts written down: `flashinfer-perf compare`, Markdown, JSON, the job of GitHub.

What the commands share that make verdicts is here too: their options and rules (`judging.py`), and the processes of
two sides that they measure in turns (`sides.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command, verdict


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "compare",
            "Compare JSON files of runs with those of a baseline, and print a verdict for each case.",
            f"{__name__}.compare_command:main",
            "judge",
        ),
    )


def pytest_perf_judged(judgement: verdict.Judgement) -> Iterable[str]:
    from pytest_flashinfer_perf.extensions.compare import markdown

    return markdown.publish(judgement)
