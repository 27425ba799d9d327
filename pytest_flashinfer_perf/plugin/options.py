"""Add the options to pytest's command line, in groups."""

from __future__ import annotations

import argparse

import pytest

from pytest_flashinfer_perf.config.option import whole
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
    _add_hidden(parser.getgroup("flashinfer-perf hidden"))


def _add_hidden(group: pytest.OptionGroup) -> None:
    """Older names for parts of `--perf-model`, and options by which the commands start pytest."""
    for name in ("tp", "dp", "ep"):
        group.addoption(f"--perf-{name}", type=whole(1), help=argparse.SUPPRESS)
    group.addoption("--perf-only", metavar="FILE", help=argparse.SUPPRESS)
    group.addoption("--perf-plant", metavar="FILE", help=argparse.SUPPRESS)
