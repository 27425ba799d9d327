"""xdist's workers on this machine: one for each GPU, pinned to it, and replaced when it dies."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.errors import is_installed
from pytest_flashinfer_perf.machine import another_process, builds
from pytest_flashinfer_perf.machine.another_process import NoAnswerError
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.session import case_endings, journal, reports, stash
from pytest_flashinfer_perf.session.case_endings import Death
from pytest_flashinfer_perf.settings.option import GPU_WORKERS
from pytest_flashinfer_perf.spec import flags

VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_GPUS = "FLASHINFER_PERF_GPUS"  # those of the session, in a worker that sees one of them
BRIEF, REFUSED = "flashinfer_perf", "flashinfer_perf_refused"
AS_OFTEN_AS_NEEDED = "1000000"  # each worker that dies has cost a case, and there are no more of them than cases
MOST_STILLBORN = 3
ONE_HOST = "workers of another host: a run is spread over hosts by --perf-shard, and joined by flashinfer-perf merge"
DIST = {
    "each": "every worker would measure every case",
    **dict.fromkeys(
        ("loadscope", "loadfile", "loadgroup"),
        "a case that ends its worker would be run again by each that replaces it",
    ),
    "worksteal": "what becomes of a dead worker's cases is not tried here",
}


@dataclass(frozen=True)
class WorkerBrief:
    """What the controller sends to a worker: the run's id, finished cases, modules that do not compile, what to
    refuse, and the file for last words.
    """

    run: str = ""
    finished: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Mapping[str, Any], ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)
    dist: str | None = None
    gpu: str | None = None
    words: str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> WorkerBrief | None:
        """The data, None in a process that is not a worker."""
        given = getattr(config, "workerinput", None)
        if given is None:
            return None
        values: dict[str, Any] = json.loads(given.get(BRIEF, "{}"))
        return cls(**{**values, "places": tuple(values.get("places", ()))})


def number(config: pytest.Config) -> int | None:
    """The number of workers for `-n auto`, if the project lets this plugin decide."""
    device = config.getoption("perf_device")
    if not config.getini(GPU_WORKERS) or device == "cpu:any" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return max(1, len(gpus(device)))


def gpus(device: str) -> list[str]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them, found without creating a context."""
    if device.startswith("cpu") or not is_installed("torch"):
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE, "")
    named = visible.split(",")[:count] if visible else [str(index) for index in range(count)]
    return named if device in ("auto", "cuda") else named[:1]


def gpus_of_session() -> list[str]:
    """The UUIDs of all GPUs that the session may use: a worker sees only its own."""
    import torch

    return _uuids(os.environ.get(ALL_GPUS, os.environ.get(VISIBLE))) if torch.cuda.device_count() else []


@functools.cache
def _uuids(visible: str | None) -> list[str]:
    """Asked of another process, since what a process can see is settled when it first looks."""
    program = (
        "import json, torch; count = torch.cuda.device_count(); "
        "print(json.dumps([f'GPU-{torch.cuda.get_device_properties(i).uuid}' for i in range(count)]))"
    )
    try:
        told = another_process.answer(program, **({} if visible is None else {VISIBLE: visible}))
    except NoAnswerError as error:
        raise NoAnswerError(f"the GPUs of this host could not be listed: {error}") from error
    uuids: list[str] = json.loads(told.splitlines()[-1])
    return uuids


def pin(specs: Iterable[Any], names: Sequence[str]) -> None:
    """Pin each worker to a GPU, in its spec, which its replacement gets too. What the user has pinned stays."""
    free = [name for name in names if name not in {spec.env.get(VISIBLE) for spec in specs}]
    for spec in specs:
        if VISIBLE not in spec.env and free:
            spec.env[VISIBLE] = free.pop(0)
            spec.env[ALL_GPUS] = ",".join(names)


def refusal(dist: str, spec: Any) -> str | None:
    """Why nothing can be timed by this worker, whatever it is to measure on."""
    if spec.via or not spec.popen:
        return ONE_HOST
    return f"--dist={dist}: {DIST[dist]}; say --dist=load" if dist in DIST else None


def obstacle(spec: Any, specs: Sequence[Any], names: Sequence[str], *, opted_in: bool) -> str | None:
    """Why this worker cannot time anything on a GPU."""
    own = spec.env.get(VISIBLE)
    there = [other.env.get(VISIBLE) for other in specs if other is not spec]
    if not there or (own is not None and own not in there):
        return None
    if own is not None:
        return f"two workers are pinned to the same {VISIBLE}={own}: give each a GPU of its own"
    if not opted_in:
        return f"workers share a GPU: set {GPU_WORKERS} = true in pytest's ini file for one worker per GPU, or say -n 1"
    return (
        f"{len(specs)} workers and {len(names)} GPUs: workers that share a GPU distort each other's times, use -n auto"
    )


class Controller:
    """Starts the workers and collects their reports, in the main process."""

    def __init__(self, config: pytest.Config, brief: WorkerBrief) -> None:
        self._config = config
        self._brief = brief
        self._opted_in = bool(config.getini(GPU_WORKERS))
        self._specs: Sequence[Any] = ()
        self._gpus: list[str] = []
        self._collected: set[str] = set()
        self._stillborn = 0
        self._poisoned: set[str] = set()
        self._broken = False
        if not config.option.tx:
            config.option.dist = "no"  # without workers it means nothing, and pytest-benchmark would switch itself off
        # Before xdist reads them: replace workers as often as needed, and hand out cases one by one. Only `load` drops
        # a test that ends its worker: by file or scope it would end each that replaces it.
        if self._opted_in and config.option.dist == "load":
            if config.option.maxworkerrestart is None:
                config.option.maxworkerrestart = AS_OFTEN_AS_NEEDED
            if config.option.maxschedchunk is None:
                config.option.maxschedchunk = 1

    @cached_property
    def _words(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="flashinfer-perf-"))
        self._config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        self._specs = specs
        if self._opted_in:
            self._gpus = gpus(self._config.getoption("perf_device"))
            pin(specs, self._gpus)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        spec = node.gateway.spec
        brief = replace(
            self._brief,
            broken=dict(builds.broken),
            dist=refusal(self._config.option.dist, spec),
            gpu=obstacle(spec, self._specs, self._gpus, opted_in=self._opted_in),
            words=str(self._words / f"{node.gateway.id}.txt"),
        )
        node.workerinput[BRIEF] = json.dumps(asdict(brief))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        self._collected.add(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        refused = getattr(node, "workeroutput", {}).get(REFUSED)
        if refused:
            raise pytest.UsageError(refused)
        self._stillborn += bool(error) and node.gateway.id not in self._collected
        if self._opted_in and self._stillborn >= MOST_STILLBORN:
            raise pytest.UsageError(f"{self._stillborn} workers died before they had collected, the last with: {error}")

    def pytest_internalerror(self) -> None:
        self._broken = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """xdist ends well, where the last worker ends with an error of its own and nothing is left to hand out."""
        if self._broken and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.of(report).is_poisoned:
            self._poisoned.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """The report of a case that ended its worker gets the cause, or is dropped if the worker has reported it."""
        if crashitem in self._poisoned:
            report.outcome, report.when, report.longrepr = "passed", "teardown", None
            return
        death = self._death(report.node.gateway)
        if death is None:
            return
        path = journal.path_of(self._config)
        started = journal.started(path, crashitem) if path else None
        again = flags.join(["pytest", stash.as_typed(self._config, report.nodeid)])
        report.when, report.location = "call", (report.location[0], None, report.nodeid.partition("::")[2])
        report.longrepr = f"{death.outcome}: {death.sentence}"
        report.sections.append(("ended with", death.outcome))
        report.sections += [("last words", death.words)] if death.words else []
        report.sections.append(("run it again", started.repeat if started else again))
        reports.add(report, ended=death.outcome)
        identity = started.identity if started else Identity(case=report.nodeid)
        reports.add(report, unmeasured=reports.unmeasured_of(report, identity))

    def _death(self, gateway: Any) -> Death | None:
        """How a worker died; None for one without cases, for which xdist's message is enough."""
        words = self._words / f"{gateway.id}.txt"
        if not words.exists():
            return None
        process, _, last = words.read_text(errors="replace").partition("\n")
        return case_endings.of_death(last, self._config.getoption("perf_timeout"), case_endings.exit_code(int(process)))


class WorkerErrorRelay:
    """Sends a worker's usage errors to the controller, which raises them; xdist would only report a lost worker."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        with usage_errors_sent(session.config):
            return (yield)

    pytest_runtestloop = pytest_collection


@contextmanager
def usage_errors_sent(config: Any) -> Iterator[None]:
    """From a worker to the controller; anywhere else nothing but raised."""
    try:
        yield
    except pytest.UsageError as error:
        getattr(config, "workeroutput", {})[REFUSED] = str(error)
        raise
