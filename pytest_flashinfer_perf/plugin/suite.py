"""The performance suite: its test files, and the cases of each for a run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.apis import all_apis
from pytest_flashinfer_perf.config.option import DEFAULT_SEED
from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.flashinfer_benchmark import testlist, upstream
from pytest_flashinfer_perf.flashinfer_benchmark.testlist import Entry
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.routines import all_backends, all_routines, model_step
from pytest_flashinfer_perf.routines.model_configs import shipped
from pytest_flashinfer_perf.routines.model_configs.step import parse
from pytest_flashinfer_perf.routines.model_step import Plan
from pytest_flashinfer_perf.runs.step import ModelStep
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Spread, split_name
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf

FAMILIES = ("attention", "gemm", "moe")


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
    """Where a run without named files looks for what it asks for by `--perf-api`, `--perf-case` and `--perf-step`."""
    if api and not cases:
        return [api_path()]
    return [*paths(), *([api_path()] if api or step or any(map(_may_be_api, cases)) else [])]


def _may_be_api(line: str) -> bool:
    """Whether a line names an API, or a routine of upstream's that may be an API."""
    words = line.replace("=", " ").split()
    return "--api" in words or any(map(upstream.may_be_api, words))


def verify(settings: Settings) -> None:
    """Raise ParamError for unknown backends, cases and models, before anything is collected."""
    _verify_model(settings)
    known = all_backends() | _api_backends(settings)
    strange = [name for name in settings.backends if name not in known]
    if strange:
        raise ParamError(f"--perf-backends: {unknown(strange[0], sorted(known))}")
    asked_for(settings)


def _api_backends(settings: Settings) -> set[str]:
    if not (settings.api or runs_a_step(settings.model, settings.step)):
        return set()
    return {name for api in all_apis().values() for name in api.backends}


def _verify_model(settings: Settings) -> None:
    if settings.model is None:
        if settings.tp or settings.dp or settings.ep:
            raise ParamError("--perf-tp, --perf-dp and --perf-ep need --perf-model")
        if settings.step:
            raise ParamError("--perf-step needs --perf-model")
        return
    known = sorted({*_presets(), *shipped.names()})
    if settings.model not in known and not shipped.is_path(settings.model):
        raise ParamError(f"--perf-model: {unknown(settings.model, known)}")
    for routine in all_routines().values():
        _model_shapes(routine, settings)


def _presets() -> set[str]:
    return {name for routine in all_routines().values() if routine.presets for name in routine.presets.layers}


def runs_a_step(model: str | None, step: str | None) -> bool:
    """As a model does that is given by its config.json, or with `--perf-step`; other models have sweeps."""
    return model is not None and (step is not None or split_name(model)[0] not in _presets())


def planned(settings: Settings) -> Plan | None:
    if settings.model is None or not runs_a_step(settings.model, settings.step):
        return None
    return _plan(settings.model, settings.step or "", _spread(settings))


def recorded_step(settings: Settings) -> ModelStep | None:
    step = planned(settings)
    return step.recorded if step else None


@functools.cache
def _plan(model: str, step: str, spread: Spread) -> Plan:
    return model_step.plan(model, parse(step, spread), all_apis())


def _spread(settings: Settings) -> Spread:
    return Spread(settings.tp or 1, settings.dp or 1, settings.ep or 1)


def _model_shapes(routine: AnyRoutine, settings: Settings) -> list[Shape[Any]]:
    step = planned(settings)
    return (
        list(routine.shapes_of_model(settings.model or "", _spread(settings))) if step is None else step.shapes(routine)
    )


def asked_for(settings: Settings) -> list[Case]:
    """The cases that `--perf-case` names."""
    return [entry.case for entry in _entries(settings) if entry.case is not None]


def without_case(settings: Settings) -> list[Entry]:
    """The entries of `--perf-case` that only upstream has."""
    return [entry for entry in _entries(settings) if entry.missing]


def _entries(settings: Settings) -> Iterator[Entry]:
    for line in settings.cases:
        entries = testlist.read_line(line, "--perf-case")
        problem = next((entry.problem for entry in entries if entry.problem), "")
        if problem:
            raise ParamError(f"--perf-case={line!r}: {problem}")
        yield from entries


def cases_of(routine: AnyRoutine, settings: Settings, own: Sequence[Params | str] = ()) -> list[Case]:
    """A test's cases: those of `--perf-case`, else its own shapes, else the model's or the tier's, for each backend."""
    if settings.cases:
        return [case for case in asked_for(settings) if case.routine is routine]
    shapes = [_own(routine, params) for params in own] or _listed(routine, settings)
    asked = list(backends_of(routine, settings))
    wanted = ((s, b) for s in shapes for b in asked if b in (s.backends or asked))
    return _distinct([Case(routine, s, b, *_settings_of_cases(settings)) for s, b in wanted])


def _listed(routine: AnyRoutine, settings: Settings) -> list[Shape[Any]]:
    return _model_shapes(routine, settings) if settings.model else list(routine.tiers.get(settings.suite, tuple)())


def _own(routine: AnyRoutine, params: Params | str) -> Shape[Any]:
    return Shape(flags.read(routine.params, flags.split(params)) if isinstance(params, str) else params)


def backends_of(routine: AnyRoutine, settings: Settings) -> Iterator[str]:
    if not settings.backends:
        return iter(routine.backends)
    asked = (routine.backend_named(name) for name in settings.backends)
    return iter(dict.fromkeys(backend.name for backend in asked if backend is not None))


def _settings_of_cases(settings: Settings) -> tuple[int, str | None, str | None]:
    return (DEFAULT_SEED if settings.seed is None else settings.seed, settings.case_tag, settings.autotune_cache)


def _distinct(made: list[Case]) -> list[Case]:
    """Raise if two cases share an id, by which results are matched later."""
    seen: dict[str, Case] = {}
    for case in made:
        if seen.setdefault(case.id, case) is not case:
            raise ParamError(f"two cases of {case.routine.name} have the id {case.id}")
    return made
