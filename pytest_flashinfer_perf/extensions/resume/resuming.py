"""Cases that an earlier run finished pass again with what it measured, and the rest is run."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from pytest_flashinfer_perf.api import (
    BOARD,
    SETTINGS,
    Device,
    Settings,
    formatting,
    printing,
    provenance,
    reports,
    stash,
    usage,
)
from pytest_flashinfer_perf.extensions.resume import journal
from pytest_flashinfer_perf.extensions.resume.journal import WELL, Journal, Past

KEPT = "kept"  # of the parts of a test's report: it was finished by an earlier run, and not run again
SENT = "flashinfer_perf_resume"  # to workers


@dataclass(frozen=True)
class RunBrief:
    """What each process of a run knows of it: its id, and what an earlier run finished, and where."""

    run: str
    finished: Mapping[str, str] = field(default_factory=dict)
    places: tuple[Mapping[str, Any], ...] = ()


BRIEF = pytest.StashKey[RunBrief]()


def brief_of(config: pytest.Config) -> RunBrief:
    """Made once, when pytest is configured if an earlier run is to be gone on with."""
    if BRIEF not in config.stash:
        sent = getattr(config, "workerinput", {}).get(SENT)
        with usage.errors_of_use():
            brief = config.stash[BRIEF] = RunBrief(**json.loads(sent)) if sent else _of_main_process(config)
        if brief.finished:
            config.pluginmanager.register(SkipFinished(brief.finished), "flashinfer-perf-skip-finished")
    return config.stash[BRIEF]


def _of_main_process(config: pytest.Config) -> RunBrief:
    if not config.getoption("perf_resume") or config.option.collectonly:
        return RunBrief(uuid4().hex)
    path, notes = journal.path_of(config), config.stash[BOARD].notes
    if path is None:
        raise pytest.UsageError("--perf-resume: a run's journal is beside its --benchmark-json=FILE: name that file")
    past = journal.read(path)
    if past is None:
        notes.append(f"--perf-resume: no journal at {path}, everything is run")
        return RunBrief(uuid4().hex)
    config.pluginmanager.register(EarlierRows(past, notes), "flashinfer-perf-earlier-rows")
    return RunBrief(past.run, past.repeats, past.places)


def send(node: Any) -> None:
    node.workerinput[SENT] = json.dumps(asdict(brief_of(node.config)))


def begin(config: pytest.Config) -> None:
    """Begin the journal, or go on with it; raise UsageError where it is of another run or cannot be written."""
    path = journal.path_of(config)
    if path is None:
        return
    brief = brief_of(config)
    place = _place(config, config.stash[SETTINGS], config.stash[stash.DEVICE])
    changed = differences(brief.places, place)
    if changed:
        cure = "leave out --perf-resume to measure all of it here"
        raise pytest.UsageError(f"--perf-resume: the journal is not of this run, {', '.join(changed)}: {cure}")
    try:
        written = Journal(path, brief.run, place)
    except OSError as error:
        raise pytest.UsageError(str(error)) from error
    config.add_cleanup(written.close)
    config.pluginmanager.register(Keeper(written), "flashinfer-perf-journal")


def _place(config: pytest.Config, settings: Settings, device: Device) -> dict[str, Any]:
    """All that decides whether rows are comparable: where, with what, and how they are measured."""
    commit = config.hook.pytest_benchmark_generate_commit_info(config=config)
    facts = {**provenance.versions(), "python": platform.python_version(), "host": platform.node()}
    checking = asdict(settings.checking)
    facts["tolerances"] = repr(checking.pop("tolerances"))
    measuring = asdict(settings.measuring)
    facts["--benchmark-max-time"] = measuring.pop("max_time")
    others = {"seed": settings.seed, "case_tag": settings.case_tag}
    how = {**measuring, **checking, **others}
    settings_by_option = {f"--perf-{name.replace('_', '-')}": value for name, value in how.items()}
    return {**facts, "device": device.name, "commit": f"{commit.get('id')}{_digest(commit)}", **settings_by_option}


def _digest(commit: Mapping[str, Any]) -> str:
    """A digest of what is not committed: rows of other code are of another run."""
    if not commit.get("dirty") or shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "diff", "HEAD"], capture_output=True, check=False)  # noqa: S607
    return f" with uncommitted changes {hashlib.sha256(done.stdout).hexdigest()[:12]}"


def differences(places: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> list[str]:
    """The differences between this place and the journal's last one; none if any of its places is as this one."""
    if not places or place in places:
        return []
    then = places[-1]
    return [f"{name} was {then.get(name)}, is {place.get(name)}" for name in place if then.get(name) != place.get(name)]


def is_kept(report: pytest.TestReport) -> bool:
    return KEPT in reports.of(report).parts


class Keeper:
    """Writes what is finished to the journal, in the process that runs it."""

    def __init__(self, written: Journal) -> None:
        self._journal = written

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The journal comes first: what other plugins keep may be lost with the process."""
        ended = report.when == "call" or report.outcome not in WELL
        if ended and not is_kept(report):
            self._journal.finished(report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._journal.lost is not None:
            lost = f"--perf-resume could not go on with this run: {self._journal.lost}"
            printing.write_lines(terminalreporter, [lost])


class SkipFinished:
    """Lets finished tests pass without being set up or called, in the process that runs tests.

    Only once each, since the gate may measure one of them again.
    """

    def __init__(self, finished: Mapping[str, str]) -> None:
        self._finished = dict(finished)
        self._kept: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        finished = self._finished.pop(item.nodeid, None)
        self._kept = item.nodeid if finished is not None and finished == stash.repeat(item) else None
        if self._kept is not None:
            pytest.skip("instead of setting it up")

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if pyfuncitem.nodeid != self._kept:
            return None
        pyfuncitem.stash.setdefault(stash.PARTS, {})[KEPT] = True
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if item.nodeid == self._kept and report.when == "setup":
            report.outcome, report.longrepr = "passed", None
        return report


class EarlierRows:
    """Gives the report of a finished test the row that was measured earlier, in the process that gathers rows."""

    def __init__(self, past: Past, notes: list[str]) -> None:
        self._past = past
        self._notes = notes
        self._kept: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if is_kept(report):
            self._kept.add(report.nodeid)
            setattr(report, reports.NAME, self._past.finished[report.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.USAGE_ERROR:
            kept = formatting.counted(len(self._kept), "finished case")
            self._notes.append(f"--perf-resume: {kept} of {self._past.path} not run again")
