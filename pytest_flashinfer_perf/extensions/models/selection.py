"""What `--perf-model` and `--perf-step` ask for: a model's sweep of shapes, or the kernels of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_flashinfer_perf.api import BOARD, SETTINGS, cases, errors, usage
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.many import gpus
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models import shipped
from pytest_flashinfer_perf.extensions.models.deployment import parse
from pytest_flashinfer_perf.extensions.models.step import NAME, StepPlan
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Spread, split_name
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape


def swept() -> set[str]:
    """The models whose shapes some routine is swept with."""
    return {name for routine in all_routines().values() if routine.presets for name in routine.presets.layers}


def model_names() -> list[str]:
    return sorted({*swept(), *shipped.names()})


class SelectedModel:
    """The cases of each routine, from these options; files are relative to the current folder."""

    def __init__(self, config: pytest.Config) -> None:
        self.model, self.step = config.getoption("perf_model"), config.getoption("perf_step")
        if self.model is not None and shipped.is_path(self.model):
            self.name, self.gpus = str(config.invocation_params.dir / self.model), dict[str, int]()
        else:
            self.name, self.gpus = split_name(self.model or "")

    @functools.cached_property
    def is_step(self) -> bool:
        """Whether a step is measured: that of a config.json, or by `--perf-step`. Other models have sweeps."""
        return self.model is not None and (self.step is not None or self.name not in swept())

    @functools.cached_property
    def plan(self) -> StepPlan:
        return plans.of(self.name, parse(self.step or "", self.gpus))

    @functools.cached_property
    def recorded(self) -> StepPlan | None:
        """The step as this FlashInfer can measure it, for the file of the run."""
        if not self.is_step:
            return None
        step, here = plans.completed(self.plan, {**all_routines(), **all_apis()}), gpus.of_session()
        return plans.within(step, len(here)) if here else step

    def pytest_collection(self) -> None:
        """Raise for what is wrong before anything is collected."""
        with usage.errors_of_use():
            if self.model is None:
                raise ParamError("--perf-step needs --perf-model")
            if not shipped.is_path(self.name) and self.name not in model_names():
                raise ParamError(f"--perf-model: {errors.unknown(self.name, model_names())}")
            for routine in all_routines().values():
                self.shapes(routine)

    def shapes(self, routine: AnyRoutine) -> Sequence[Shape[Any]]:
        if self.is_step:
            return plans.shapes(self.plan, routine)
        return list(routine.shapes_of_model(self.name, Spread(**self.gpus)))

    @pytest.hookimpl(trylast=True)
    def pytest_perf_cases(
        self, config: pytest.Config, routine: AnyRoutine, shapes: Sequence[Params | str]
    ) -> Sequence[Case] | None:
        """A test that lists its own shapes keeps them, and a search ignores both."""
        return None if shapes else cases.of_shapes(routine, self.shapes(routine), config.stash[SETTINGS])

    def pytest_perf_routines_beside(self) -> Mapping[str, AnyRoutine]:
        return all_apis() if self.is_step else {}


class SummedSession:
    """A session whose rows are summed up by a plan, which the file of the run has."""

    def __init__(self, config: pytest.Config, plan: Callable[[], StepPlan | None]) -> None:
        self.plan = config.stash[BOARD].of_run[NAME] = plan

    def pytest_report_collectionfinish(self) -> list[str]:
        """Say which part of the step has cases."""
        plan = self.plan()
        return list(plan.coverage) if plan else []
