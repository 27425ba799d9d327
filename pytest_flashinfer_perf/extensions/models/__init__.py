"""A model by its config.json, the kernels that one GPU of its deployment runs in a step, and the time of that step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command, Run, verdict
    from pytest_flashinfer_perf.extensions.reports.sections import Section

# Kernels between products, a process that measures, GPUs, tables of a step, published models.
USES = ("apis", "compare", "many", "reports", "routines")

MODEL = option(
    "--perf-model",
    daily=True,
    reads=True,
    metavar="NAME",
    help="Run the shapes that this model has on one GPU, instead of a tier. NAME may end with -tp8, -dp2, -ep32. "
    "Of a config.json, or its folder, run the kernels of a step.",
)
STEP = option(
    "--perf-step",
    metavar="FLAGS",
    help="Run the kernels of one step of the model, by the flags of `flashinfer-perf model`. Default of a config.json: "
    "--phase decode --batch 64 --context 8192.",
)
OPTIONS = (MODEL, STEP)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.CASES: OPTIONS}


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "model",
            "Show the GPU time of one step of a model, kernel by kernel.",
            f"{__name__}.model_command:main",
            "measure",
        ),
    )


def pytest_perf_sums() -> tuple[verdict.Summing, ...]:
    from pytest_flashinfer_perf.extensions.models.verdicts import SUMS

    return (SUMS,)


# A session that measures a model.


def names_a_model(config: pytest.Config) -> bool:
    return any(config.getoption(one.dest) is not None for one in OPTIONS)


def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:
    """A step has kernels of the suite and of APIs."""
    if not names_a_model(config) or config.getoption("perf_api"):
        return []
    from pytest_flashinfer_perf.api import cases
    from pytest_flashinfer_perf.extensions import apis
    from pytest_flashinfer_perf.extensions.models.selection import SelectedModel

    return [*cases.paths(), apis.tests()] if SelectedModel(config).is_step else []


def pytest_configure(config: pytest.Config) -> None:
    if names_a_model(config):
        from pytest_flashinfer_perf.extensions.models.selection import SelectedModel, SummedSession

        model = SelectedModel(config)
        config.pluginmanager.register(model, "flashinfer-perf-model")
        config.pluginmanager.register(SummedSession(config, lambda: model.recorded), "flashinfer-perf-step")


def pytest_perf_sections(runs: Sequence[Run]) -> Iterable[Section]:
    from pytest_flashinfer_perf.extensions.models import budget

    steps = budget.of_runs(runs)
    return [budget.section(steps)] if steps else []
