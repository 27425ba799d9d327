"""The performance suite: its test files, and the cases of each for a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.extensions.apis import all_apis
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models import shipped
from pytest_flashinfer_perf.extensions.models.deployment import parse
from pytest_flashinfer_perf.extensions.models.step import StepPlan
from pytest_flashinfer_perf.extensions.ranks import asked
from pytest_flashinfer_perf.extensions.testlists import upstream
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.plugin.lines import Entry
from pytest_flashinfer_perf.routines import all_backends, all_routines
from pytest_flashinfer_perf.settings.option import DEFAULT_SEED
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Spread, split_name
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf

FAMILIES = ("attention", "gemm", "moe", "comm")


def root() -> Path:
    """The folder that holds `tests/`: next to the package in a checkout, inside it in a wheel."""
    package = Path(__file__).parents[1]
    packed = package / "suite"
    return packed if packed.is_dir() else package.parent


def paths() -> list[Path]:
    return [found for family in FAMILIES if (found := root() / "tests" / family).is_dir()]


def family_tests(family: str) -> dict[str, Callable[[Perf, Case], None]]:
    """A test function for each routine of a family, by its name."""
    return {f"test_{name}": _test(name) for name, routine in all_routines().items() if routine.family == family}


def _test(routine: str) -> Callable[[Perf, Case], None]:
    @pytest.mark.perf_cases(routine)
    def test(perf: Perf, case: Case) -> None:
        perf(case)

    return test


def api_path() -> Path:
    return root() / "tests" / "api"


def asked_paths(*, api: bool, cases: Sequence[str], step: bool = False) -> list[Path]:
    """The folders where a run without named files finds what `--perf-api`, `--perf-case` and `--perf-step` ask for."""
    if api and not cases:
        return [api_path()]
    words = [word for line in cases for word in line.replace("=", " ").split()]
    may_be_api = "--api" in words or any(map(upstream.may_be_api, words))
    return [*paths(), *([api_path()] if api or step or may_be_api else [])]


def verify(settings: Settings) -> None:
    """Raise for unknown backends, cases and models, or an invalid recording, before anything is collected."""
    _verify_model(settings)
    known = set(all_backends())
    if settings.api or settings.traffic or _runs_a_step(settings):
        known |= {name for api in all_apis().values() for name in api.backends}
    strange = [name for name in settings.backends if name not in known]
    if strange:
        raise ParamError(f"--perf-backends: {unknown(strange[0], sorted(known))}")
    if settings.traffic:
        recorded_step(settings)
    asked_for(settings)


def _verify_model(settings: Settings) -> None:
    if settings.plan:
        _planned(settings)
    if settings.model is None:
        if settings.step:
            raise ParamError("--perf-step needs --perf-model")
        return
    name, known = _split(settings.model)[0], sorted({*_presets(), *shipped.names()})
    if name not in known and not shipped.is_path(name):
        raise ParamError(f"--perf-model: {unknown(name, known)}")
    for routine in all_routines().values():
        _model_shapes(routine, settings)


def _split(model: str) -> tuple[str, dict[str, int]]:
    """A model's name without its numbers of GPUs, which a path does not have."""
    return (model, {}) if shipped.is_path(model) else split_name(model)


def _presets() -> set[str]:
    return {name for routine in all_routines().values() if routine.presets for name in routine.presets.layers}


def runs_a_step(model: str | None, step: str | None, plan: str | None) -> bool:
    """Whether the run is of one step: of a config.json, with `--perf-step`, or of a plan. Other models have sweeps."""
    if model is None:
        return plan is not None
    return step is not None or _split(model)[0] not in _presets()


def _runs_a_step(settings: Settings) -> bool:
    return runs_a_step(settings.model, settings.step, settings.plan)


def _planned(settings: Settings) -> StepPlan:
    return _plan(settings.model or "", settings.step or "", settings.plan)


@functools.cache
def _plan(model: str, step: str, file: str | None) -> StepPlan:
    if file is not None:
        return plans.read(Path(file))
    name, gpus = _split(model)
    return plans.of(name, parse(step, gpus))


def recorded_step(settings: Settings) -> StepPlan | None:
    """The step of the run, as this FlashInfer can measure it, for the file of the run; or the calls of a recording."""
    if settings.traffic is not None:
        from pytest_flashinfer_perf.extensions.traffic import replay  # imports torch

        return replay.of_file(settings.traffic, settings.cover, settings.backends).plan
    if not _runs_a_step(settings):
        return None
    step, gpus = plans.completed(_planned(settings), {**all_routines(), **all_apis()}), asked.gpus()
    return plans.within(step, len(gpus)) if gpus else step


def _model_shapes(routine: AnyRoutine, settings: Settings) -> list[Shape[Any]]:
    if _runs_a_step(settings):
        return list(plans.shapes(_planned(settings), routine))
    name, gpus = _split(settings.model or "")
    return list(routine.shapes_of_model(name, Spread(**gpus)))


def asked_for(settings: Settings) -> list[Case]:
    """The cases that `--perf-case` names."""
    return [entry.case for entry in _entries(settings) if entry.case is not None]


def without_case(settings: Settings) -> list[Entry]:
    """The entries of `--perf-case` that are valid and have no case here."""
    return [entry for entry in _entries(settings) if entry.missing]


def _entries(settings: Settings) -> Iterator[Entry]:
    for line in settings.cases:
        entries = lines.read(line, "--perf-case")
        problem = next((entry.problem for entry in entries if entry.problem), "")
        if problem:
            raise ParamError(f"--perf-case={line!r}: {problem}")
        yield from entries


def cases_of(routine: AnyRoutine, settings: Settings, own: Sequence[Params | str] = ()) -> list[Case]:
    """A test's cases: those of `--perf-case`, else its own shapes, else the model's or the tier's, for each backend."""
    if settings.cases:
        return [case for case in asked_for(settings) if case.routine is routine]
    shapes: Sequence[Shape[Any]] = [_own(routine, params) for params in own]
    if not own:
        is_model = settings.model or settings.plan
        shapes = _model_shapes(routine, settings) if is_model else list(routine.tiers.get(settings.suite, tuple)())
    asked = list(backends_of(routine, settings))
    wanted = ((s, b) for s in shapes for b in asked if b in (s.backends or asked))
    seed = DEFAULT_SEED if settings.seed is None else settings.seed
    made: dict[str, Case] = {}
    for shape, backend in wanted:
        case = Case(routine, shape, backend, seed, settings.case_tag, settings.autotune_cache)
        if made.setdefault(case.id, case) is not case:  # by which results are matched later
            raise ParamError(f"two cases of {routine.name} have the id {case.id}")
    return list(made.values())


def _own(routine: AnyRoutine, params: Params | str) -> Shape[Any]:
    return Shape(flags.read(routine.params, flags.split(params)) if isinstance(params, str) else params)


def backends_of(routine: AnyRoutine, settings: Settings) -> Iterator[str]:
    if not settings.backends:
        return iter(routine.backends)
    asked = (routine.backend_named(name) for name in settings.backends)
    return iter(dict.fromkeys(backend.name for backend in asked if backend is not None))
