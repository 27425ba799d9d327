"""What FlashInfer's tuner and its heuristics cost: every tactic timed."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import CaseRun, Command, Quantity
    from pytest_flashinfer_perf.spec.case import Case

OPTIONS = (
    option(
        "--perf-tactics",
        users=options.Users("has a choice of tactics", lambda row: "tactics" in row.facts),
        metavar="SECONDS",
        type=options.SECONDS,
        help="Race all that FlashInfer's tuner, or the heuristic behind auto, could choose for a case, for so long, "
        "after it was timed. Its row gets `tactics`. Default: do not.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: OPTIONS}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("perf_tactics") is not None and config.getoption("perf_refcheck") != "on":
        raise pytest.UsageError("--perf-tactics checks every tactic and times it: leave out --perf-refcheck")


@pytest.hookimpl(wrapper=True)
def pytest_perf_run_case(item: pytest.Item, case: Case) -> Generator[None, CaseRun, CaseRun]:
    """Add to a row everything that could have been chosen, if it is asked for."""
    run = yield
    budget = item.config.getoption("perf_tactics")
    if budget is None or run.row is None:
        return run
    from pytest_flashinfer_perf.extensions.tuner import search

    return search.with_tactics(run, case, item.config, budget)


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "tune-report",
            "Time every tactic of FlashInfer's tuner, and show what its choices cost.",
            f"{__name__}.tune_report_command:main",
        ),
    )


def pytest_perf_quantities() -> tuple[Quantity, ...]:
    """Limits of the tuner's choices, which `tune-report` judges."""
    from pytest_flashinfer_perf.api import Quantity
    from pytest_flashinfer_perf.extensions.tuner.judge import TunerLimits

    return (Quantity(TunerLimits),)
