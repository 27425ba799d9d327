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
    reads=True,
    metavar="NAME",
    help="Run the shapes that this model has on one GPU, instead of a tier. NAME may end with the tensor-parallel "
    "(-tp8), data-parallel (-dp2) and expert-parallel size (-ep32), as in llama-3.1-70b-tp8. Default of each: 1. "
    "A config.json, or its folder, gives the kernels of a step of that model.",
)
STEP = option(
    "--perf-step",
    metavar="FLAGS",
    help="Run the kernels of one step of the model: --phase decode or prefill, --batch, --context, --page-size, "
    "--kv-dtype, --tp, --dp, --ep. Default for a config.json: --phase decode --batch 64 --context 8192.",
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


def is_asked(config: pytest.Config) -> bool:
    return any(config.getoption(one.dest) is not None for one in OPTIONS)


def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:
    """A step has kernels of the suite and of APIs."""
    if not is_asked(config) or config.getoption("perf_api"):
        return []
    from pytest_flashinfer_perf.api import cases
    from pytest_flashinfer_perf.extensions import apis
    from pytest_flashinfer_perf.extensions.models.selection import AskedModel

    return [*cases.paths(), apis.tests()] if AskedModel(config).is_step else []


def pytest_configure(config: pytest.Config) -> None:
    if is_asked(config):
        from pytest_flashinfer_perf.extensions.models.selection import AskedModel, SummedSession

        asked = AskedModel(config)
        config.pluginmanager.register(asked, "flashinfer-perf-model")
        config.pluginmanager.register(SummedSession(config, lambda: asked.recorded), "flashinfer-perf-step")


def pytest_perf_sections(runs: Sequence[Run]) -> Iterable[Section]:
    from pytest_flashinfer_perf.extensions.models import budget

    steps = budget.of_runs(runs)
    return [budget.section(steps)] if steps else []
