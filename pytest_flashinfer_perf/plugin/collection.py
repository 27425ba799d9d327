"""Make pytest items from markers: the cases of `perf_cases`, their marks and clocks, and `requires_*` skips."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

import pytest

from pytest_flashinfer_perf.engine import stopping
from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.plugin import cases
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.session.benchmark_rows import ReplayClock
from pytest_flashinfer_perf.session.stash import CASE, SETTINGS, case_of, measures
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.settings.usage import errors_of_use
from pytest_flashinfer_perf.spec.case import CaseOfTest, routine_named, selects_no_routine
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Routine

NO_CASE = "no-case"


def parametrize(
    metafunc: pytest.Metafunc, routines: Mapping[str, AnyRoutine | str], shapes: Sequence[Params | str]
) -> None:
    """Parametrize a test with the cases of routines, each by what its ids begin with."""
    with_ids = [
        (f"{before}{case.id}", case)
        for before, named in routines.items()
        for case in _cases_of(
            routine_named(named, all_routines()) if isinstance(named, str) else named, metafunc, shapes
        )
    ]
    params = [pytest.param(case, id=id_, marks=marks(case)) for id_, case in with_ids]
    metafunc.parametrize("case", params or [pytest.param(None, id=NO_CASE)])


def _cases_of(routine: AnyRoutine, metafunc: pytest.Metafunc, shapes: Sequence[Params | str]) -> Sequence[CaseOfTest]:
    """The cases of a test: those that are named, or of an extension that is asked for others, or its own."""
    config, others = metafunc.config, None
    settings = config.stash[SETTINGS]
    if not settings.cases:
        others = config.hook.pytest_perf_cases(config=config, routine=routine, shapes=shapes)
    return cases.cases_of(routine, settings, shapes) if others is None else others


def marks(case: CaseOfTest) -> list[pytest.MarkDecorator]:
    needed = _requires(case.backend.runs_as, case.backend.api)
    return [pytest.mark.perf(**case.marks), getattr(pytest.mark, case.routine.mark), *needed]


@functools.cache
def _requires(backend: str, api: str) -> tuple[pytest.MarkDecorator, ...]:
    """Make the markers of what a backend needs; for a template's API, FlashInfer's decorators alone say it."""
    if not (backend and api):
        return ()
    needed = (pytest.mark.requires_flashinfer(api),)
    if backend not in capability.HARDWARE:
        return needed
    capabilities = pytest.mark.requires_sm(*capability.HARDWARE[backend], backend=backend, api=api)
    return (capabilities, pytest.mark.requires_backend(backend, api=api), *needed)


def add_keywords(items: list[pytest.Item]) -> None:
    """Let `-k` select a case by its routine, backend, model and types, whatever its function is called.

    The wrapper that a backend calls may have the name of another routine, which selects that one's cases alone.
    """
    for item in items:
        case = _case_of(item)
        if case is not None:
            others = all_routines().keys() - {case.routine.name}
            item.extra_keyword_matches.update(case.keywords - others)


def _case_of(item: pytest.Item) -> CaseOfTest | None:
    case: CaseOfTest | None = getattr(getattr(item, "callspec", None), "params", {}).get("case")
    return case if isinstance(getattr(case, "routine", None), Routine) else item.stash.get(CASE, None)


def give_clocks(items: list[pytest.Item]) -> None:
    """Add a benchmark marker with the replay clock and the user's options: pytest-benchmark reads one marker only."""
    ours = {"min_rounds": stopping.FEWEST, "disable_gc": True, "warmup": False}
    for item in items:
        own = item.get_closest_marker("benchmark")
        seconds = own.kwargs.get("max_time", 1.0) if own else 1.0
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float, Decimal)) or not 0 <= seconds < math.inf:
            raise pytest.UsageError(f"{item.nodeid}: benchmark(max_time={seconds!r}) must be a number of seconds")
        options = {**(own.kwargs if own else {}), **ours, "timer": ReplayClock()}
        item.add_marker(pytest.mark.benchmark(**options), append=False)


def verify_named_cases(session: pytest.Session, items: Sequence[pytest.Item]) -> None:
    """Raise if no test has a case of `--perf-case`, unless `--perf-only` lists the tests."""
    names = {(case.routine.name, case.id) for item in items if (case := case_of(item)) is not None}
    wanted = cases.named_cases(session.config.stash[SETTINGS])
    lacking = [case for case in wanted if (case.routine.name, case.id) not in names]
    may_be_there = session.testsfailed or session.config.getoption("perf_only")  # in what fails to be collected
    if lacking and not may_be_there:
        named = f"--perf-case: no test that is named has the case {lacking[0].identity.case}"
        raise pytest.UsageError(f"{named}: mark one by perf_cases({lacking[0].routine.name!r}), or name no file")


def deselect_empty(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, rather than skip, tests of routines that have no case in this run."""
    with_specs = [(item, getattr(item, "callspec", None)) for item in items if isinstance(item, pytest.Function)]
    empty = [item for item, spec in with_specs if spec and spec.id == NO_CASE and spec.params.get("case", 0) is None]
    if empty:
        items[:] = [item for item in items if item not in empty]
        config.hook.pytest_deselected(items=empty)


def verify_project(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise for names of routines and backends in the settings file that neither the package nor this run has."""
    settings = config.stash[SETTINGS]
    if not (settings.quarantine or settings.checking.tolerances):
        return
    routines = dict(all_routines())
    for item in items:
        case = _case_of(item)
        if case is not None:
            routines[case.routine.name] = case.routine
    with errors_of_use():
        routines.update(cases.routines_beside(config))
    _verify_quarantine(settings, routines)
    backends = {name: list(routine.backends) for name, routine in routines.items()}
    for glob in project_file.without_match(settings.checking.tolerances, backends):
        name, _, backend = glob.partition("/")
        sentence = unknown(backend, sorted(backends[name])) if name in backends else unknown(name, sorted(backends))
        raise pytest.UsageError(f"{settings.project.where('tolerances', glob)}: {sentence}")


def _verify_quarantine(settings: Settings, routines: Mapping[str, AnyRoutine]) -> None:
    for entry in settings.quarantine:
        if entry.names_tests:
            continue
        where = settings.project.where("quarantine", entry.which)
        try:
            nobody = selects_no_routine(entry.which, routines)
        except ParamError as error:
            raise pytest.UsageError(f"{where}: {error}") from error
        if nobody:
            routine = entry.which.partition("/")[0]
            raise pytest.UsageError(f"{where}: {unknown(routine, sorted(routines))}")


def quarantine(item: pytest.Item) -> str | None:
    """Why a test is not to be started, where the settings file names it by its id."""
    entries = item.config.stash[SETTINGS].quarantine if measures(item) else ()
    return next((entry.sentence for entry in entries if entry.holds_test(item.nodeid)), None)


def unmet(item: pytest.Item, device: Device) -> str | None:
    """The first requirement of a test's requires_* markers that this machine does not meet."""
    return capability.missing(tuple(_requirements(item, device)), device)


def _capability(*capabilities: str, backend: str = "this test", api: str = "") -> capability.Requirement:
    """Require one of these capabilities, unless the API's own decorators say where it runs."""
    return capability.hardware(backend, *filter(None, [api]), capabilities=capabilities)


def _backends(*names: str, api: str = "") -> Iterator[capability.Requirement]:
    for name in names:
        if name not in capability.HARDWARE:
            raise pytest.UsageError(f"requires_backend: {unknown(name, sorted(capability.HARDWARE))}")
        yield from capability.backend(name, *filter(None, [api]))


def _requirements(item: pytest.Item, device: Device) -> Iterator[capability.Requirement]:
    for marker in item.iter_markers("requires_sm"):
        yield _capability(*marker.args, **marker.kwargs)
    for marker in item.iter_markers("requires_backend"):
        yield from _backends(*marker.args, **marker.kwargs)
    for marker in item.iter_markers("requires_flashinfer"):
        yield capability.flashinfer(*marker.args)
        if device.is_gpu:
            yield from map(capability.declared_by, marker.args)
