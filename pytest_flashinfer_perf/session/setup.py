"""Set up a session that measures: time limits, and the lock of the device.

`start` is called when pytest is configured, and `ready` before the first case, where the device is known. Both register
plugins, each of which does one thing; nothing here measures.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.machine.garbage import importing
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.session import benchmark_rows, gpu_lock, reports
from pytest_flashinfer_perf.session.stash import INSTEAD, is_worker
from pytest_flashinfer_perf.session.survival import REMEDY, CaseGuard
from pytest_flashinfer_perf.session.time_limit import Limit, not_counted
from pytest_flashinfer_perf.settings.usage import errors_of_use

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device
    from pytest_flashinfer_perf.settings.settings import Settings

STDERR = pytest.StashKey[IO[str]]()
WORDS = pytest.StashKey[IO[str]]()  # where a process that dies says so, if an extension reads it there
CASE_GUARD = "flashinfer-perf-survival"
BY_CASE = pytest.StashKey[bool]()  # GPUs are locked for a case, since some of this session's cases need several


def start(config: pytest.Config) -> None:
    """Register what a session needs from the start, when pytest is configured."""
    config.pluginmanager.register(reports.Serializer(), "flashinfer-perf-serializer")
    stderr = config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # pytest captures it later
    config.add_cleanup(stderr.close)
    if is_worker(config):
        return
    config.pluginmanager.register(Gatherer(config), "flashinfer-perf-gatherer")


def json_of(config: pytest.Config) -> Path | None:
    """The file of `--benchmark-json`."""
    path = config.getoption("benchmark_json", None)
    return config.invocation_params.dir / path if path else None


def find_device(settings: Settings) -> Device:
    """The device that options name, on which the instrument works; UsageError where there is none."""
    with errors_of_use(), importing():  # an instrument imports FlashInfer
        from pytest_flashinfer_perf.engine import instruments
        from pytest_flashinfer_perf.engine.timing import uses_graph
        from pytest_flashinfer_perf.machine import devices

        try:
            device = devices.find(settings.device)
        except devices.DeviceError as error:
            raise pytest.UsageError(f"--perf-device: {error}") from error
        instruments.choose(settings.measuring.instrument, device)
        uses_graph(settings.measuring, device, by_default=False)
    return device


def ready(session: pytest.Session, settings: Settings, device: Device) -> None:
    """Prepare the process that runs cases before the first of them; raise UsageError where none should run."""
    config = session.config
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("rows are pytest-benchmark's: leave out -p no:benchmark")
    if is_timed(config, settings):
        if share_gpus(session.items, device):
            config.stash[BY_CASE] = True
        else:
            be_alone(config, device)
    config.pluginmanager.register(CaseGuard(device, _limit(config)), CASE_GUARD)


def is_timed(config: pytest.Config, settings: Settings) -> bool:
    return not (settings.checking.only or INSTEAD in config.stash or config.getoption("benchmark_disable"))


def be_alone(config: pytest.Config, device: Device) -> None:
    """Lock the GPU until the session ends. Workers on a CPU take turns instead, see `turn`."""
    if device.uuid is None:
        return
    stack = ExitStack()
    with errors_of_use(OSError):
        stack.enter_context(gpu_lock.alone_on(device.uuid, _says_so(config, device.name)))
    config.add_cleanup(stack.close)


def _says_so(config: pytest.Config, waits_for: str) -> Callable[[Path], None]:
    terminal = config.pluginmanager.get_plugin("terminalreporter")

    def waits(path: Path) -> None:
        if terminal is not None:
            write_lines(terminal, [f"waiting for {waits_for}: another run holds {path}"])

    return waits


def share_gpus(items: Iterable[pytest.Item], device: Device) -> bool:
    """Whether a test of this session may need another GPU than the one that its process measures on.

    All workers say the same: one that had its GPU for the whole session would keep another's test waiting for it.
    """
    return device.uuid is not None and any(item.config.hook.pytest_perf_devices(item=item) for item in items)


@contextmanager
def turn(item: pytest.Item, settings: Settings, device: Device) -> Iterator[None]:
    """Wait for the device of this case: workers on a CPU take turns, and GPUs that cases share are locked per case."""
    config = item.config
    with ExitStack() as stack:
        if BY_CASE in config.stash and device.uuid is not None:
            named: Sequence[str] | None = config.hook.pytest_perf_devices(item=item)
            stack.enter_context(turn_of_all(config, named or [device.uuid]))
        if is_worker(config) and device.uuid is None and settings.device != "cpu:any":
            with not_counted():
                stack.enter_context(gpu_lock.alone_on("cpu", lambda _: None))
        yield


@contextmanager
def turn_of_all(config: pytest.Config, names: Iterable[str]) -> Iterator[None]:
    """Wait for all of these devices, and have them for a case."""
    with ExitStack() as stack:
        with not_counted():
            stack.enter_context(gpu_lock.alone_on_all(names, _says_so(config, "its GPUs")))
        yield


class Gatherer:
    """Adds rows that workers measured to pytest-benchmark's, in the main process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._added: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.begins_attempt(report) and report.nodeid in self._added:
            benchmark_rows.forget(self._config, report.nodeid)
        carried = reports.of(report)
        if carried.row and not benchmark_rows.has_last(self._config, report.nodeid):
            self._added.add(report.nodeid)
            benchmark_rows.add(self._config, carried.row, carried.options)


def _limit(config: pytest.Config) -> Limit | None:
    seconds = config.getoption("perf_timeout")
    if not seconds or INSTEAD in config.stash:  # which has limits of its own
        return None
    if WORDS in config.stash:
        return Limit(seconds, config.stash[WORDS])
    stderr = config.stash[STDERR]
    last = f"\nflashinfer-perf: no end within {seconds:g} s (--perf-timeout), and the run ends with it: {REMEDY}\n"

    def announce() -> None:
        stderr.write(last)
        stderr.flush()

    return Limit(seconds, stderr, announce)
