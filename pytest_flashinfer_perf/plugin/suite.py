"""The performance suite: where its test files are, and the cases that a run asks of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.flashinfer_benchmark import testlist
from pytest_flashinfer_perf.flashinfer_benchmark.testlist import Entry
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.routines import all_backends, all_routines
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import DEFAULT_SEED, Case
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Spread
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape

FAMILIES = ("attention", "gemm", "moe")


def root() -> Path:
    """Beside the package in a checkout, inside it in a wheel: either way the folder that holds `tests/`."""
    package = Path(__file__).parents[1]
    packed = package / "suite"
    return packed if packed.is_dir() else package.parent


def paths() -> list[Path]:
    return [found for family in FAMILIES if (found := root() / "tests" / family).is_dir()]


def verify(settings: Settings) -> None:
    """Raise ParamError for what no routine knows, before anything is collected."""
    known = all_backends()
    strange = [name for name in settings.backends if name not in known]
    if strange:
        raise ParamError(f"--perf-backends: {unknown(strange[0], sorted(known))}")
    asked_for(settings)
    _verify_model(settings)


def _verify_model(settings: Settings) -> None:
    if settings.model is None:
        if settings.tp or settings.dp or settings.ep:
            raise ParamError("--perf-tp, --perf-dp and --perf-ep need --perf-model")
        return
    known = sorted({name for r in all_routines().values() if r.presets for name in r.presets.layers})
    if settings.model not in known:
        raise ParamError(f"--perf-model: {unknown(settings.model, known)}")
    for routine in all_routines().values():
        _model_shapes(routine, settings)


def _model_shapes(routine: AnyRoutine, settings: Settings) -> list[Shape[Any]]:
    over = Spread(settings.tp or 1, settings.dp or 1, settings.ep or 1)
    return list(routine.shapes_of_model(settings.model or "", over))


def asked_for(settings: Settings) -> list[Case]:
    """The cases of `--perf-case`."""
    return [entry.case for entry in _entries(settings) if entry.case is not None]


def without_case(settings: Settings) -> list[Entry]:
    """What `--perf-case` asks for and only upstream has."""
    return [entry for entry in _entries(settings) if entry.missing]


def _entries(settings: Settings) -> Iterator[Entry]:
    for line in settings.cases:
        entries = testlist.of_one(line, "--perf-case")
        problem = next((entry.problem for entry in entries if entry.problem), "")
        if problem:
            raise ParamError(f"--perf-case={line!r}: {problem}")
        yield from entries


def cases_of(routine: AnyRoutine, settings: Settings, own: Sequence[Params | str] = ()) -> list[Case]:
    """A test's cases: `--perf-case`'s, else its own shapes, else the model's or the tier's; times the backends."""
    if settings.cases:
        return [case for case in asked_for(settings) if case.routine is routine]
    shapes = [_own(routine, params) for params in own] or _listed(routine, settings)
    asked = list(backends_of(routine, settings))
    wanted = ((s, b) for s in shapes for b in asked if b in (s.backends or asked))
    return _distinct([Case(routine, s, b, *_said(settings)) for s, b in wanted])


def _listed(routine: AnyRoutine, settings: Settings) -> list[Shape[Any]]:
    return _model_shapes(routine, settings) if settings.model else list(routine.tiers.get(settings.suite, tuple)())


def _own(routine: AnyRoutine, params: Params | str) -> Shape[Any]:
    return Shape(flags.read(routine.params, flags.split(params)) if isinstance(params, str) else params)


def backends_of(routine: AnyRoutine, settings: Settings) -> Iterator[str]:
    if not settings.backends:
        return iter(routine.backends)
    asked = (routine.backend_named(name) for name in settings.backends)
    return iter(dict.fromkeys(backend.name for backend in asked if backend is not None))


def _said(settings: Settings) -> tuple[int, str | None, str | None]:
    return (DEFAULT_SEED if settings.seed is None else settings.seed, settings.case_tag, settings.autotune_cache)


def _distinct(made: list[Case]) -> list[Case]:
    """Ids are what results are matched by later: two cases must not share one."""
    seen: dict[str, Case] = {}
    for case in made:
        if seen.setdefault(case.id, case) is not case:
            raise ParamError(f"two cases of {case.routine.name} have the id {case.id}")
    return made
