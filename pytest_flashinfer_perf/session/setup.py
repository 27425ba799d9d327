"""Set up a session that measures: journal, time limits, the lock of the device, workers.

`start` is called when pytest is configured, and `ready` before the first case, where the device is known. Both register
plugins, each of which does one thing; nothing here measures.
"""

from __future__ import annotations

import faulthandler
import hashlib
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.session import benchmark_rows, gpu_lock, journal, progress, reports, workers
from pytest_flashinfer_perf.session.journal import Journal, Past, Restorer, SkipFinished
from pytest_flashinfer_perf.session.stash import INSTEAD, measures
from pytest_flashinfer_perf.session.survival import REMEDY, Beside, Retirement, Survival
from pytest_flashinfer_perf.session.time_limit import Limit, not_counted
from pytest_flashinfer_perf.session.workers import Controller, WorkerBrief, WorkerErrorRelay
from pytest_flashinfer_perf.settings.usage import errors_of_use

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device
    from pytest_flashinfer_perf.settings.settings import Settings

BRIEF = pytest.StashKey[WorkerBrief]()
STDERR = pytest.StashKey[IO[str]]()
BESIDE = "flashinfer-perf-beside"
BY_CASE = pytest.StashKey[bool]()  # GPUs are locked for a case, since some of this session's cases need several


def start(config: pytest.Config, notes: list[str]) -> None:
    """Register what a session needs from the start, when pytest is configured."""
    brief = config.stash[BRIEF] = WorkerBrief.of(config) or _gathering(config, notes)
    builds.broken.update(brief.broken)
    config.pluginmanager.register(reports.Serializer(), "flashinfer-perf-serializer")
    stderr = config.stash[STDERR] = os.fdopen(os.dup(2), "w")  # pytest captures it later
    config.add_cleanup(stderr.close)
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(WorkerErrorRelay(), "flashinfer-perf-worker-error-relay")
    if brief.finished:
        config.pluginmanager.register(SkipFinished(brief.finished), "flashinfer-perf-skip-finished")


def _gathering(config: pytest.Config, notes: list[str]) -> WorkerBrief:
    """The setup of the main process."""
    asked = config.getoption("perf_resume") and not config.option.collectonly
    past = _past(config, notes) if asked else None
    brief = WorkerBrief(past.run, past.repeats, past.places) if past else WorkerBrief(uuid4().hex)
    shown = progress.of_command()
    if shown is not None:
        config.add_cleanup(builds.tell(shown.compiles))
        config.pluginmanager.register(shown, "flashinfer-perf-progress")
    config.pluginmanager.register(Gatherer(config), "flashinfer-perf-gatherer")
    if past is not None:
        config.pluginmanager.register(Restorer(past, notes), "flashinfer-perf-restorer")
    if config.pluginmanager.hasplugin("xdist"):
        config.pluginmanager.register(Controller(config, brief), "flashinfer-perf-controller")
    return brief


def _past(config: pytest.Config, notes: list[str]) -> Past | None:
    path = journal.path_of(config)
    past = journal.read(path) if path else None
    if past is None:
        where = path or "pytest's cache, which is off or cannot be written"
        notes.append(f"--perf-resume: no journal at {where}, everything is run")
    return past


def ready(session: pytest.Session, settings: Settings, device: Device) -> None:
    """Prepare the process that runs cases before the first of them; raise UsageError where none should run."""
    config = session.config
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("rows are pytest-benchmark's: leave out -p no:benchmark")
    brief, place = config.stash[BRIEF], _place(config, settings, device)
    if is_timed(config, settings):
        refuse(brief, device)
        if share_gpus(session.items, device):
            config.stash[BY_CASE] = True
        else:
            be_alone(config, device)
    changed = journal.differences(brief.places, place)
    if changed:
        cure = "leave out --perf-resume to measure all of it here"
        raise pytest.UsageError(f"--perf-resume: the journal is not of this run, {', '.join(changed)}: {cure}")
    config.pluginmanager.register(
        Survival(device, _limit(config), _journal(config, brief, place)), "flashinfer-perf-survival"
    )
    is_wanted = not hasattr(config, "workerinput") and not config.pluginmanager.is_blocked(BESIDE)
    if is_wanted and faulthandler.is_enabled():
        beside = Beside(config.stash[STDERR])
        config.add_cleanup(beside.close)
        config.pluginmanager.register(beside, BESIDE)
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Retirement(), "flashinfer-perf-retirement")
        others = (item for item in session.items if not measures(item))
        if not any("benchmark" in getattr(item, "fixturenames", ()) for item in others):
            config.pluginmanager.register(SilenceXdistWarning(), "flashinfer-perf-silence-xdist-warning")


class SilenceXdistWarning:
    """Ignores pytest-benchmark's warning that it is off in xdist's workers: the controller records their rows."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        warnings.filterwarnings("ignore", message="Benchmarks are automatically disabled because xdist")


def is_timed(config: pytest.Config, settings: Settings) -> bool:
    return not (settings.checking.only or INSTEAD in config.stash or config.getoption("benchmark_disable"))


def refuse(brief: WorkerBrief, device: Device) -> None:
    if brief.dist:
        raise pytest.UsageError(brief.dist)
    if brief.gpu and device.uuid is not None:
        raise pytest.UsageError(brief.gpu)


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
    names_some = device.uuid is not None and any(item.config.hook.pytest_perf_devices(item=item) for item in items)
    return names_some and workers.gpus_of_session() != [device.uuid]


@contextmanager
def turn(item: pytest.Item, settings: Settings, device: Device) -> Iterator[None]:
    """A CPU is one device, however many workers it has; GPUs that cases share with others are locked case by case."""
    config = item.config
    with ExitStack() as stack:
        if BY_CASE in config.stash and device.uuid is not None:
            named: Sequence[str] | None = config.hook.pytest_perf_devices(item=item)
            stack.enter_context(turn_of_all(config, named or [device.uuid]))
        if hasattr(config, "workerinput") and device.uuid is None and settings.device != "cpu:any":
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


def _place(config: pytest.Config, settings: Settings, device: Device) -> dict[str, Any]:
    """All that makes rows comparable: where they are measured, with what, and how."""
    from pytest_flashinfer_perf.machine import provenance

    commit = config.hook.pytest_benchmark_generate_commit_info(config=config)
    known = {**provenance.versions(), "python": platform.python_version(), "host": platform.node()}
    checking = asdict(settings.checking)
    known["tolerances"] = repr(checking.pop("tolerances"))
    measuring = asdict(settings.measuring)
    known["--benchmark-max-time"] = measuring.pop("max_time")
    others = {"seed": settings.seed, "case_tag": settings.case_tag, "plant": dict(settings.plants)}
    how = {**measuring, **checking, **others}
    asked = {f"--perf-{name.replace('_', '-')}": value for name, value in how.items()}
    return {**known, "device": device.name, "commit": f"{commit.get('id')}{_changes(commit)}", **asked}


def _changes(commit: Mapping[str, Any]) -> str:
    """A digest of what is not committed: rows of other code are of another run."""
    if not commit.get("dirty") or shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "diff", "HEAD"], capture_output=True, check=False)  # noqa: S607
    return f" with uncommitted changes {hashlib.sha256(done.stdout).hexdigest()[:12]}"


def _journal(config: pytest.Config, brief: WorkerBrief, place: Mapping[str, Any]) -> Journal | None:
    path = journal.path_of(config)
    try:
        made = Journal(path, brief.run, place) if path is not None else None
    except OSError as error:
        if journal.json_of(config) is not None:
            raise pytest.UsageError(str(error)) from error
        made = None
    if made is not None:
        config.add_cleanup(made.close)
    elif hasattr(config, "cache"):
        _warn_of_no_journal(config)
    return made


def _warn_of_no_journal(config: pytest.Config) -> None:
    """Warn, and do not fail: a read-only folder is no reason not to measure."""
    folder = config.rootpath / config.getini("cache_dir")
    warning = f"--perf-resume could not go on with this run: {folder} cannot be written. With --benchmark-json it could"
    with errors_of_use(pytest.PytestWarning):
        config.issue_config_time_warning(pytest.PytestWarning(warning), stacklevel=2)


class Gatherer:
    """In the main process: adds the rows of workers and of a resumed run to pytest-benchmark's."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._added: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.begins_attempt(report) and report.nodeid in self._added:
            benchmark_rows.forget(self._config, report.nodeid)
        carried = reports.of(report)
        if carried.row and (carried.is_kept or hasattr(report, "node")):
            self._added.add(report.nodeid)
            benchmark_rows.add(self._config, carried.row, carried.options)


def _limit(config: pytest.Config) -> Limit | None:
    brief, seconds = config.stash[BRIEF], config.getoption("perf_timeout")
    words = config.stash[STDERR]
    if brief.words is not None:
        words = Path(brief.words).open("w", encoding="utf-8")  # noqa: SIM115 - open until this process ends
        _write(words, f"{os.getpid()}\n")
        faulthandler.enable(words)
    if not seconds or INSTEAD in config.stash:  # which has limits of its own
        return None
    last = f"\nflashinfer-perf: no end within {seconds:g} s (--perf-timeout), and the run ends with it: {REMEDY}\n"
    return Limit(seconds, words, None if hasattr(config, "workerinput") else lambda: _write(words, last))


def _write(file: IO[str], text: str) -> None:
    file.write(text)
    file.flush()
