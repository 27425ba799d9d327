"""The hooks of a session that has cases, or was asked for any by an option.

`begin` reads the settings and registers what gathers results; the entry point, plugin/__init__.py, calls it before the
first of these hooks is needed. The modules that do the work are imported when they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.errors import is_installed
from pytest_flashinfer_perf.machine.garbage import freeze_imports, importing
from pytest_flashinfer_perf.plugin import options, read_options, results
from pytest_flashinfer_perf.plugin.results import BOARD, Board
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.session import benchmark_rows, progress, reports, stash
from pytest_flashinfer_perf.session import setup as running
from pytest_flashinfer_perf.session.stash import DEVICE, SETTINGS, measures
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.settings.usage import errors_of_use

SMALL = "smoke"
SMALL_TIER = f"tier {SMALL}, as this run is on the CPU: --perf-suite=default runs the usual shapes"

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device
    from pytest_flashinfer_perf.plugin.fixture import CaseRun, Perf
    from pytest_flashinfer_perf.spec.case import Case
    from pytest_flashinfer_perf.spec.params import Params
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


def begin(config: pytest.Config) -> None:
    """Read the settings, and register the plugins of a session that measures."""
    with errors_of_use():
        settings = config.stash[SETTINGS] = read_options.read(config)
        board = config.stash[BOARD] = Board()
        config.pluginmanager.register(board, "flashinfer-perf-board")
        running.start(config)
        if not stash.is_worker(config):
            _start_gathering(config, settings, board)
        _set_arguments(config)


def _start_gathering(config: pytest.Config, settings: Settings, board: Board) -> None:
    """Register plugins that need all rows, in the main process; a worker of xdist has only a part of them."""
    if not config.option.collectonly:
        config.pluginmanager.register(results.ResultFiles(config, board), "flashinfer-perf-result-files")
        if config.pluginmanager.hasplugin("benchmark") and results.writes(config):
            config.pluginmanager.register(benchmark_rows.MachineFacts(config), benchmark_rows.MACHINE)
        results.verify(config, settings)
    if config.getoption("perf_gate") is not None or config.getoption("perf_save_baseline"):
        from pytest_flashinfer_perf.plugin import gate

        gate.start(config, settings.project, board.block_parts)


def _set_arguments(config: pytest.Config) -> None:
    """Add the tests that options ask for to the arguments of pytest, where none are named."""
    paths = [] if config.args_source is pytest.Config.ArgsSource.ARGS else selected_paths(config)
    if paths:
        config.args[:] = paths


def selected_paths(config: pytest.Config) -> list[str]:
    """Give the paths that options select: the suite's, if they name a case of it, and those of extensions."""
    from pytest_flashinfer_perf.plugin import cases

    of_suite = cases.paths() if config.getoption("perf_case") else []
    return list(dict.fromkeys(map(str, (*of_suite, *loading.joined(config.hook.pytest_perf_paths(config=config))))))


def _keep_only(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all tests but those that the file of `--perf-only` lists."""
    path = config.invocation_params.dir / config.getoption("perf_only")
    try:
        wanted = set(path.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise pytest.UsageError(f"--perf-only: {error}") from error
    others = [item for item in items if item.nodeid not in wanted]
    items[:] = [item for item in items if item.nodeid in wanted]
    config.hook.pytest_deselected(items=others)


def pytest_collection(session: pytest.Session) -> None:
    settings = session.config.stash[SETTINGS]
    if settings.backends or settings.cases:
        from pytest_flashinfer_perf.plugin import cases

        with errors_of_use():
            cases.verify(session.config)


def pytest_report_collectionfinish(items: list[pytest.Item]) -> list[str]:
    """Say in the header whether FlashInfer is complete, and which tier of shapes nobody asked for."""
    from pytest_flashinfer_perf.machine import requirements

    measured = list(filter(measures, items))
    if not measured:
        return []
    lacking = "; ".join(one.sentence for one in requirements.unmet())
    state = f" is INCOMPLETE: {lacking}" if lacking else ", with all that it requires"
    is_there = lacking or requirements.versions()
    library = [f"flashinfer {requirements.version(requirements.PROJECT)}{state}"] if is_there else []
    tiers = {case.tier for item in measured if (case := stash.case_of(item)) is not None}
    is_small = SMALL in tiers and measured[0].config.stash[SETTINGS].suite is None
    return [*library, *[SMALL_TIER] * is_small]


@pytest.hookimpl(specname="pytest_collection", wrapper=True)
def pytest_collection_imports() -> Generator[None, object, object]:
    """Collect while garbage collection waits: torch and routines are imported meanwhile."""
    with importing():
        return (yield)


def parametrize(
    metafunc: pytest.Metafunc, routines: Callable[[], Mapping[str, AnyRoutine | str]], shapes: Sequence[Params | str]
) -> None:
    if not is_installed("torch"):
        metafunc.parametrize("case", [None])  # an error, unless the test is deselected
        return
    from pytest_flashinfer_perf.plugin import collection

    collection.parametrize(metafunc, routines(), shapes)


def complete(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the items that options ask for, and give those that measure their clocks and keywords."""
    if config.stash[SETTINGS].cases:
        from pytest_flashinfer_perf.plugin import collection
        from pytest_flashinfer_perf.plugin.items import WithoutCase

        collection.verify_named_cases(session, items)
        items.extend(session.genitems(WithoutCase.from_parent(session, name="--perf-case", nodeid="--perf-case")))
    if config.getoption("perf_only"):
        _keep_only(config, items)
    measured = [item for item in items if measures(item)]
    if measured and is_installed("torch"):
        from pytest_flashinfer_perf.plugin import collection

        collection.verify_project(config, measured)
        collection.give_clocks(measured)
        collection.add_keywords(measured)
        collection.deselect_empty(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Find the device and the instrument before the first test, so that a missing one is one error, not many."""
    measured = any(map(measures, session.items))
    needs_device = measured or any(any(map(one.get_closest_marker, options.REQUIRING)) for one in session.items)
    if session.config.option.collectonly or not needs_device:
        return
    settings = session.config.stash[SETTINGS]
    device = session.config.stash[DEVICE] = running.find_device(settings)
    if measured:
        running.ready(session, settings, device)
    output = session.config.pluginmanager.get_plugin("terminalreporter")
    if measured and output is not None and session.config.get_verbosity() >= 0:
        _say_meanwhile(session, settings, device, output)


def _say_meanwhile(session: pytest.Session, settings: Settings, device: Device, output: Any) -> None:
    from pytest_flashinfer_perf.plugin import live_output

    config = session.config
    cases = [stash.case_of(item) for item in session.items if measures(item)]
    write_lines(output, live_output.announcement(cases, device, settings.measuring))
    config.pluginmanager.register(live_output.Tables(config.stash[BOARD], output, session.items))
    heartbeat = progress.Heartbeat(config.stash[running.STDERR], len(session.items))
    config.pluginmanager.register(heartbeat)
    heartbeat.start()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if DEVICE in item.config.stash:
        from pytest_flashinfer_perf.plugin import collection

        reason = collection.quarantine(item) or collection.unmet(item, item.config.stash[DEVICE])
        if reason:
            raise pytest.skip.Exception(reason, _use_item_location=True)  # as pytest's own markers do


@pytest.hookimpl(trylast=True)
def pytest_perf_run_case(perf: Perf, case: Case) -> CaseRun:
    return perf.measured(case)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    done = yield
    if measures(item):
        from pytest_flashinfer_perf.plugin.fixture import Perf

        perf = item.funcargs.get("perf")  # type: ignore[attr-defined] # items with fixtures have it
        if isinstance(perf, Perf):
            perf.verify_used()
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    measured = measures(item)
    if measured and call.excinfo is not None and not item.config.getoption("fulltrace"):
        from pytest_flashinfer_perf.engine import tracebacks

        lines = tracebacks.without_ours(call.excinfo.value, call.excinfo.tb)
        if lines is not None:
            call.excinfo.traceback = type(call.excinfo.traceback)(lines)
    report = yield
    if measured and report.when == "call":
        results.add(item, report)
    if report.skipped and not hasattr(report, "wasxfail"):
        results.fail_strict_skip(item, report, reports.reason(report))
    if not report.passed and (measured or stash.IDENTITY in item.stash):
        results.make_printable(report)
        unmeasured = reports.unmeasured_of(report, stash.identity(item), item.stash.get(stash.LINE, None))
        reports.add(report, unmeasured=unmeasured)
        if report.failed and call.excinfo is not None:
            results.name_line(item, report, call.excinfo)
    return report


def pytest_unconfigure() -> None:
    """Freeze imported objects, so that the garbage collections at exit, pytest's and Python's, are fast."""
    freeze_imports()
