"""What pytest is told of this plugin in every session: its options, in groups, and its markers."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf.config.option import GPU_WORKERS
from pytest_flashinfer_perf.plugin import option_tables as tables

QUESTIONS = {
    "which cases run": tables.CASES,
    "how cases are timed": tables.TIMING,
    "whether answers are right": tables.CHECKING,
    "whether it got slower": tables.GATE,
    "long runs, many GPUs and many hosts": tables.LONG_RUNS,
    "files that are read and written": tables.FILES,
    "FlashInfer-Bench data sets": tables.TRACE_SETS,
}

MARKERS = (
    "perf_cases(routine, *shapes): parametrize `case` with this routine's cases; shapes are Params or lines of flags",
    "perf_apis: parametrize `case` with the cases of all of FlashInfer's APIs that have a trace template",
    "perf_measuring(**how): how this test is timed, by the fields of Measuring, e.g. iters=20, cold_l2='none'",
    "api: cases of FlashInfer's APIs that have a trace template",
    "perf(**params): the parameters of a case, for -m 'perf(backend=\"fa3\", batch_size=16)'",
    "attention: cases of the attention family",
    "gemm: cases of the GEMM family",
    "moe: cases of the MoE family",
    'requires_sm(*capabilities): skip unless the GPU has one of them, e.g. "90", "100+"; cases carry their backend\'s',
    "requires_backend(name): skip unless this FlashInfer backend can run here; cases carry their own",
    "requires_flashinfer(*names): skip unless flashinfer imports and has these functions; cases carry what they call",
)
REQUIRING = ("requires_sm", "requires_backend", "requires_flashinfer")


def add(parser: pytest.Parser) -> None:
    """One group of `pytest --help` for each question that options answer."""
    for question, table in QUESTIONS.items():
        group = parser.getgroup(f"flashinfer-perf {question}", f"FlashInfer performance: {question}")
        for one in table:
            one.add_by(group.addoption)
    parser.addini(GPU_WORKERS, "pytest -n auto starts one worker for each visible GPU", type="bool", default=False)
    for one in tables.HIDDEN:
        one.add_by(parser.getgroup("flashinfer-perf hidden").addoption)


def are_given(config: pytest.Config) -> bool:
    """Whether an option of this plugin has another value than its default."""
    known = [one for table in QUESTIONS.values() for one in table]
    return any(getattr(config.option, one.dest, one.default) != one.default for one in (*known, *tables.HIDDEN))


def needs_device(item: pytest.Item) -> bool:
    """Whether a test measures, or is skipped where something cannot run."""
    return "perf" in getattr(item, "fixturenames", ()) or any(mark.name in REQUIRING for mark in item.iter_markers())
