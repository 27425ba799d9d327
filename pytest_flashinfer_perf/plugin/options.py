"""pytest's command-line options: a table for each group, then the markers.

Every session loads this module, also one without a case: it imports no part of the package that measures.
"""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.settings import option as opt
from pytest_flashinfer_perf.settings.option import CASES, CHECKING, TIMING, Child, Option, option, options_of
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, Settings

GATE = (
    option(
        "--perf-save-baseline",
        daily=True,
        child=Child.NONE,
        metavar="NAME",
        type=opt.NAME,
        help="Save this run, to compare others with by --perf-gate=NAME.",
    ),
    option(
        "--perf-gate",
        daily=True,
        child=Child.NONE,
        may_be_empty=True,
        metavar="BASELINE",
        help="Compare this run with a baseline: a saved name, a JSON file or a folder of them. The exit code is 1 for "
        "cases that are slower or wrong, and 2 where the comparison is incomplete.",
    ),
    *opt.JUDGED,
)
LONG_RUNS = (
    option(
        "--perf-timeout",
        daily=True,
        metavar="SECONDS",
        type=opt.LIMIT,
        default=300.0,
        help="Fail a case that takes longer than this, 0 for no limit. Default: 300.",
    ),
)
FILES = (
    option(
        "--perf-config",
        daily=True,
        reads=True,
        metavar="FILE",
        help="Settings file with tolerances, thresholds and known failures (quarantine). Default: "
        "flashinfer-perf.toml, or the table [tool.flashinfer-perf] of pyproject.toml.",
    ),
)
ONLY = option("--perf-only", child=Child.OWN, reads=True, metavar="FILE", help=SUPPRESS)  # for processes of commands


# What pytest is told of this plugin in every session: its options, in groups, and its markers.


def _of_settings(question: str) -> list[Option]:
    return [*chain(*(options_of(kind).get(question, ()) for kind in (Settings, Measuring, Checking)))]


QUESTIONS = {
    CASES: _of_settings(CASES),
    TIMING: _of_settings(TIMING),
    CHECKING: _of_settings(CHECKING),
    "whether it got slower": GATE,
    opt.LONG_RUNS: LONG_RUNS,
    opt.FILES: FILES,
}

ALL = (*(one for table in QUESTIONS.values() for one in table), ONLY)

MARKERS = (
    "perf_cases(routine, *shapes): parametrize `case` with its cases; shapes are Params or lines of flags",
    "perf_measuring(**how): how this test is timed, by the fields of Measuring, e.g. iters=20, cold_l2='none'",
    "perf(**params): the parameters of a case, for -m 'perf(backend=\"fa3\", batch_size=16)'",
    "attention: cases of the attention family",
    "gemm: cases of the GEMM family",
    "moe: cases of the MoE family",
    'requires_sm(*capabilities): skip unless the GPU has one of them, e.g. "90", "100+"; cases carry their backend\'s',
    "requires_backend(name): skip unless this FlashInfer backend can run here; cases carry their own",
    "requires_flashinfer(*names): skip unless flashinfer imports and has these functions; cases carry what they call",
)
REQUIRING = ("requires_sm", "requires_backend", "requires_flashinfer")


def add(parser: pytest.Parser, questions: Mapping[str, Sequence[Option]]) -> None:
    """Add one group of `pytest --help` for each question that options answer; the help shows the daily options."""
    for question, table in questions.items():
        title = f"FlashInfer: {question} (all: flashinfer-perf options)"
        group = parser.getgroup(f"flashinfer-perf {question}", title)
        for one in table:
            shown = one if one.daily else replace(one, keywords={**one.keywords, "help": SUPPRESS})
            shown.add_by(group.addoption)


def add_own(parser: pytest.Parser) -> None:
    add(parser, QUESTIONS)
    ONLY.add_by(parser.getgroup("flashinfer-perf hidden").addoption)


def by_question(manager: pytest.PytestPluginManager) -> dict[str, list[Option]]:
    """The options of this plugin and of its extensions that somebody may give, by the question that they answer."""
    of_extensions = {
        question: [one for one in declared if one.keywords["help"] != SUPPRESS]
        for question, declared in loading.options(manager).items()
    }
    return {
        question: [*QUESTIONS.get(question, ()), *of_extensions.get(question, ())]
        for question in (*QUESTIONS, *(one for one in of_extensions if one not in QUESTIONS))
    }


def of_all(config: pytest.Config) -> list[Option]:
    """The options of this plugin and of its extensions, where those are loaded."""
    return [*ALL, *(one for table in loading.options(config.pluginmanager).values() for one in table)]


def any_is_set(config: pytest.Config) -> bool:
    """Whether any option of this plugin or of its loaded extensions has another value than its default."""
    return any(getattr(config.option, one.dest, one.default) != one.default for one in of_all(config))


def drop(config: pytest.Config, *of: Child) -> None:
    """Give those that are the session's own their defaults, in a process that it starts with its own command line."""
    for one in of_all(config):
        if one.child in of:
            setattr(config.option, one.dest, one.fresh_default)


def needs_device(item: pytest.Item) -> bool:
    """Whether a test measures, or is skipped where something cannot run."""
    return "perf" in getattr(item, "fixturenames", ()) or any(mark.name in REQUIRING for mark in item.iter_markers())
