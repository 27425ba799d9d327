"""Add the options to pytest's command line, in groups."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf.plugin import option_tables as tables
from pytest_flashinfer_perf.running.workers import OPT_IN

QUESTIONS = {
    "which cases run": tables.CASES,
    "how cases are timed": tables.TIMING,
    "whether answers are right": tables.CHECKING,
    "whether it got slower": tables.GATE,
    "long runs, many GPUs and many hosts": tables.LONG_RUNS,
    "files that are read and written": tables.FILES,
    "FlashInfer-Bench data sets": tables.TRACE_SETS,
}


def add(parser: pytest.Parser) -> None:
    """One group of `pytest --help` for each question that options answer."""
    for question, options in QUESTIONS.items():
        group = parser.getgroup(f"flashinfer-perf {question}", f"FlashInfer performance: {question}")
        for option in options:
            option.add_by(group.addoption)
    parser.addini(OPT_IN, "pytest -n auto starts one worker for each visible GPU", type="bool", default=False)
    hidden = parser.getgroup("flashinfer-perf hidden")
    for option in tables.HIDDEN:
        option.add_by(hidden.addoption)
