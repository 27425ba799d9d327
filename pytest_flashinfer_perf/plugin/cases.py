"""The performance suite: its test files, and the cases of each for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.plugin.lines import Entry
from pytest_flashinfer_perf.routines import all_backends, all_routines
from pytest_flashinfer_perf.session.stash import SETTINGS
from pytest_flashinfer_perf.settings.option import DEFAULT_SEED
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError, Params
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
    """Give the suite's folders, then those of the extensions."""
    own = [root() / "tests" / family for family in FAMILIES]
    of_extensions = loading.joined(loading.manager().hook.pytest_perf_suite())
    return [path for path in (*own, *of_extensions) if path.is_dir()]


def find_arguments(config: pytest.Config) -> None:
    """Let `tests/attention` name the suite's tests where no such file is, as beside an installed suite."""
    here = config.invocation_params.dir
    for nth, argument in enumerate(config.args):
        path, *test = argument.split("::", 1)
        packed = root() / path
        if not (here / path).exists() and any(packed.is_relative_to(folder) for folder in paths()):
            config.args[nth] = "::".join([str(packed), *test])


def family_tests(family: str) -> dict[str, Callable[[Perf, Case], None]]:
    """A test function for each routine of a family, by its name."""
    return {f"test_{name}": _test(name) for name, routine in all_routines().items() if routine.family == family}


def _test(routine: str) -> Callable[[Perf, Case], None]:
    @pytest.mark.perf_cases(routine)
    def test(perf: Perf, case: Case) -> None:
        perf(case)

    return test


def verify(config: pytest.Config) -> None:
    """Raise for unknown backends and cases, before anything is collected."""
    settings, backends = config.stash[SETTINGS], set(all_backends())
    if not backends.issuperset(settings.backends):
        backends |= {backend for routine in routines_beside(config).values() for backend in routine.backends}
    unknown_names = [name for name in settings.backends if name not in backends]
    if unknown_names:
        raise ParamError(f"--perf-backends: {unknown(unknown_names[0], sorted(backends))}")
    named_cases(settings)


def routines_beside(config: pytest.Config) -> dict[str, AnyRoutine]:
    """Give the routines of extensions that no list of routines has."""
    of_extensions = config.hook.pytest_perf_routines_beside(config=config)
    return {name: routine for of_one in of_extensions for name, routine in of_one.items()}


def named_cases(settings: Settings) -> list[Case]:
    """Give the cases that `--perf-case` names."""
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
    """A test's cases: those of `--perf-case`, else its own shapes, else the tier's, for each backend."""
    if settings.cases:
        return [case for case in named_cases(settings) if case.routine is routine]
    if own:
        return of_shapes(routine, [_own(routine, params) for params in own], settings)
    tier = tier_of(settings)
    return of_shapes(routine, routine.tiers.get(tier, tuple)(), settings, tier)


def tier_of(settings: Settings) -> str:
    """The tier that was asked for; else the usual one, and the smallest on a CPU, where the usual one takes hours."""
    from pytest_flashinfer_perf.machine import devices

    return settings.suite or ("smoke" if devices.is_cpu(settings.device) else "default")


def of_shapes(
    routine: AnyRoutine, shapes: Iterable[Shape[Any]], settings: Settings, tier: str | None = None
) -> list[Case]:
    """Combine each shape with each backend that options name."""
    backends = list(backends_of(routine, settings))
    wanted = ((s, b) for s in shapes for b in backends if b in (s.backends or backends))
    seed = DEFAULT_SEED if settings.seed is None else settings.seed
    by_id: dict[str, Case] = {}
    for shape, backend in wanted:
        case = Case(routine, shape, backend, seed, settings.case_tag, settings.autotune_cache, tier=tier)
        if by_id.setdefault(case.id, case) is not case:  # by which results are matched later
            raise ParamError(f"two cases of {routine.name} have the id {case.id}")
    return list(by_id.values())


def _own(routine: AnyRoutine, params: Params | str) -> Shape[Any]:
    return Shape(flags.read(routine.params, flags.split(params)) if isinstance(params, str) else params)


def backends_of(routine: AnyRoutine, settings: Settings) -> Iterator[str]:
    if not settings.backends:
        return iter(routine.backends)
    named = (routine.backend_named(name) for name in settings.backends)
    return iter(dict.fromkeys(backend.name for backend in named if backend is not None))
