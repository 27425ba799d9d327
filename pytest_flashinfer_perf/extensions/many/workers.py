"""xdist's workers on this machine: one for each GPU, pinned to it, and replaced when it dies.

`Controller` is in the main process, `Worker` in each of them. A worker that dies can report nothing: it has written
which case it began to a file, to which Python's faulthandler adds its last words, and the controller reads it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import pytest

from pytest_flashinfer_perf.api import SETTINGS, fields, reports, setup, stash
from pytest_flashinfer_perf.extensions.many import case_endings, gpus
from pytest_flashinfer_perf.extensions.many.gpus import ALL_GPUS, GPU_WORKERS, VISIBLE
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.spec import flags

BRIEF, REFUSED = "flashinfer_perf", "flashinfer_perf_refused"
POISONED = 70  # a worker's exit code; why it ended is in the report that it sent before
BEGUN = '{"begun"'
AS_OFTEN_AS_NEEDED = "1000000"  # each worker that dies has cost a case, and there are no more of them than cases
MOST_STILLBORN = 3
ONE_MACHINE = (
    "workers of another machine: a run is spread over machines by --perf-shard, and joined by flashinfer-perf merge"
)
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
    """What the controller sends to a worker: what to refuse, and the file for last words."""

    dist: str | None = None
    gpu: str | None = None
    words: str | None = None


@dataclass(frozen=True)
class BegunCase:
    """A case whose test has begun, and the commands that run it again."""

    begun: str
    identity: Identity
    repeat: str


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
        return ONE_MACHINE
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

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._opted_in = gpus.are_shared_out(config)
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
            self._gpus = gpus.visible_to(self._config.getoption("perf_device"))
            pin(specs, self._gpus)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        spec = node.gateway.spec
        brief = WorkerBrief(
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
        words = self._words / f"{report.node.gateway.id}.txt"
        if not words.exists():  # of one without cases, for which xdist's message is enough
            return
        process, case, last = _last_words(words, crashitem)
        death = case_endings.of_death(last, self._config.getoption("perf_timeout"), case_endings.exit_code(process))
        self._describe(report, death, case)

    def _describe(self, report: pytest.TestReport, death: case_endings.Death, case: BegunCase | None) -> None:
        again = case.repeat if case else flags.join(["pytest", stash.as_typed(self._config, report.nodeid)])
        report.when, report.location = "call", (report.location[0], None, report.nodeid.partition("::")[2])
        report.longrepr = f"{death.outcome}: {death.sentence}"
        report.sections.append(("ended with", death.outcome))
        report.sections += [("last words", death.words)] if death.words else []
        report.sections.append(("run it again", again))
        reports.add(report, ended=death.outcome)
        identity = case.identity if case else Identity(case=report.nodeid)
        reports.add(report, unmeasured=reports.unmeasured_of(report, identity))


def _last_words(path: Path, test: str) -> tuple[int, BegunCase | None, str]:
    """The process that wrote the file, its last case if it is this test, and what it wrote after that."""
    process, *lines = path.read_text(errors="replace").splitlines(keepends=True)
    begun = max((at for at, line in enumerate(lines) if line.startswith(BEGUN)), default=-1)
    case = fields.read(BegunCase, json.loads(lines[begun]), str(path)) if begun >= 0 else None
    return int(process), case if case and case.begun == test else None, "".join(lines[begun + 1 :])


class Worker:
    """A worker: it reads the controller's brief, and sends it what no report carries."""

    def __init__(self, config: pytest.Config) -> None:
        worker_config: Any = config
        self._config = config
        self._brief = WorkerBrief(**json.loads(worker_config.workerinput.get(BRIEF, "{}")))
        self._words: IO[str] | None = None
        self._rows_alone = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        with _usage_errors_sent(self._config):
            return (yield)

    pytest_collection_modifyitems = pytest_collection  # in a worker that extensions join while it collects

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Before the device is waited for, and time limits have a file for last words."""
        measured = [item for item in session.items if stash.measures(item)]
        others = (item for item in session.items if item not in measured)
        self._rows_alone = not any("benchmark" in getattr(item, "fixturenames", ()) for item in others)
        with _usage_errors_sent(self._config):
            if measured:
                refuse(self._config, self._brief)
                self._write_last_words()
            return (yield)

    def _write_last_words(self) -> None:
        if self._brief.words is not None:
            self._words = self._config.stash[setup.WORDS] = Path(self._brief.words).open("w", encoding="utf-8")  # noqa: SIM115 - open until this process ends
            self._write(f"{os.getpid()}\n")
            faulthandler.enable(self._words)

    def _write(self, text: str) -> None:
        if self._words is not None:
            self._words.write(text)
            self._words.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if stash.measures(item):
            case = BegunCase(item.nodeid, stash.identity(item), stash.repeat(item, from_here=True))
            self._write(f"{json.dumps(fields.written(case))}\n")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End this process if its CUDA context is lost, after its report is sent and before it takes another case."""
        if reports.of(report).is_poisoned:
            os._exit(POISONED)

    @pytest.hookimpl(tryfirst=True)
    def pytest_unconfigure(self) -> None:
        """Ignore pytest-benchmark's warning that it is off in workers: the controller writes their rows."""
        if self._rows_alone:
            warnings.filterwarnings("ignore", message="Benchmarks are automatically disabled because xdist")


def refuse(config: pytest.Config, brief: WorkerBrief) -> None:
    settings = config.stash[SETTINGS]
    if not setup.is_timed(config, settings):
        return
    if brief.dist:
        raise pytest.UsageError(brief.dist)
    if brief.gpu and gpus.visible_to(settings.device):
        raise pytest.UsageError(brief.gpu)


@contextmanager
def _usage_errors_sent(config: Any) -> Iterator[None]:
    """Send usage errors to the controller, which raises them: xdist would only report a lost worker."""
    try:
        yield
    except pytest.UsageError as error:
        config.workeroutput[REFUSED] = str(error)
        raise
