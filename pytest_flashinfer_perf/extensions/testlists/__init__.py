"""FlashInfer's own benchmark script: its command lines, its CSV and the lines that it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.case import Case, FlagLine
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

USES = ("apis",)  # which many of its routines are here


def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:
    """A line of `--perf-case` may be of a routine that is an API here."""
    from pytest_flashinfer_perf.extensions import apis
    from pytest_flashinfer_perf.extensions.testlists.upstream import may_be_api

    words = (word for line in config.getoption("perf_case") for word in line.replace("=", " ").split())
    return [apis.tests()] if any(map(may_be_api, words)) else []


def pytest_perf_line(words: Sequence[str], routines: Mapping[str, AnyRoutine]) -> FlagLine | None:
    if any(word.partition("=")[0] == "--api" for word in words):
        return None
    from pytest_flashinfer_perf.extensions.testlists import script_lines

    return script_lines.parse(list(words), routines)


def pytest_perf_repeat(case: Case) -> str | None:
    from pytest_flashinfer_perf.extensions.testlists import upstream_command

    return upstream_command.command(case)
