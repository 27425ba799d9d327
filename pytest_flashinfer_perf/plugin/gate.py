"""`--perf-gate`: compare this session with a baseline, measure suspects again, and set the exit code."""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.gate import confirmation, match, words
from pytest_flashinfer_perf.gate.confirmation import Remeasured, confirm
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.loaded_machine import is_loaded
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, Judged, Judgement, Rules, Verdict
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.read_options import rules_of
from pytest_flashinfer_perf.printing import safe_lines, write_lines
from pytest_flashinfer_perf.rows import row as rows
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.formatting import counted, wrapped
from pytest_flashinfer_perf.rows.row import Identity, Row
from pytest_flashinfer_perf.rows.run_file import Block, Run, RunError, Unmeasured
from pytest_flashinfer_perf.session import processes, reports
from pytest_flashinfer_perf.session.processes import Environment
from pytest_flashinfer_perf.session.stash import CONFIRMS, measures
from pytest_flashinfer_perf.settings.project_file import ProjectFile

NAME = "this session"
JUDGED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
LEFT_OUT = "left out by -k, -m or --deselect"
NO_FIGURE = "not measured again: one of its processes has no such time of it"
NOTHING_TO_SAVE = "--perf-save-baseline: nothing was measured, nothing is saved"


def start(config: pytest.Config, project: ProjectFile, parts: Callable[[], Mapping[str, Any]]) -> None:
    name = config.getoption("perf_save_baseline")
    if name and config.getoption("benchmark_save"):
        raise pytest.UsageError("--perf-save-baseline is --benchmark-save with samples: use one of them")
    if name:  # pytest-benchmark reads its options later
        config.option.benchmark_save, config.option.benchmark_save_data = name, True
    allowed = match.allowed(config.getoption("perf_gate_allow"))
    rules = replace(rules_of(config, project), allowed=allowed, strict=config.getoption("perf_gate_strict"))
    config.pluginmanager.register(Gate(config, rules, parts), "flashinfer-perf-gate")


def _saved(name: str, rows: Sequence[Row]) -> str:
    """What a baseline is good for: no case that was measured beside others is judged by it."""
    loaded = sum(is_loaded(row) for row in rows)
    again = f"; {loaded} of them on a loaded machine, by which nothing is judged: save it when nothing else runs"
    return f"baseline {name}: {counted(len(rows), 'case')}, for --perf-gate={name}{again if loaded else ''}"


@dataclass(eq=False)  # before pytest 9.1 a plugin has to be hashable
class Gate:
    """Gathers the rows of tests from their reports, and compares them at the end of the session."""

    config: pytest.Config
    rules: Rules
    parts: Callable[[], Mapping[str, Any]]  # of this run, which extensions add
    base: list[Run] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    again: dict[str, Remeasured | None] = field(default_factory=dict)
    not_again: str = ""
    unmeasured: dict[str, list[Unmeasured]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # to a CI system that reads the log

    def pytest_sessionstart(self) -> None:
        """Read the baseline before anything is measured, so that an error in it shows at once."""
        baseline = self.config.getoption("perf_gate")
        if baseline is None:
            return
        try:
            self.base = run_file.read_all([baseline], run_file.storage_of(self.config.getoption("benchmark_storage")))
        except RunError as error:
            pytest.exit(safe_lines(f"--perf-gate: {error}"), returncode=COULD_NOT_JUDGE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" and not measures(item):  # pytest-benchmark will write its row, with the samples
            stats = getattr((getattr(item, "funcargs", None) or {}).get("benchmark"), "stats", None)
            entry = stats.as_dict(include_data=False) if stats else None
            reports.add(report, plain=rows.read(entry, "pytest-benchmark's entry") if entry else None)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.begins_attempt(report):
            self.rows.pop(report.nodeid, None)
            self.unmeasured.pop(report.nodeid, None)
        row = reports.of(report).row or reports.of(report).plain
        if not report.passed:  # as in the JSON file; a test without the perf fixture has only an id
            left = reports.of(report).unmeasured or reports.unmeasured_of(report, Identity(case=report.nodeid))
            self.unmeasured.setdefault(report.nodeid, []).append(left)
        elif row:
            self.rows[report.nodeid] = row

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for test in [item.nodeid for item in items]:
            self.unmeasured[test] = [Unmeasured(identity=Identity(case=test), outcome="deselected", reason=LEFT_OUT)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        done = yield
        if self.base and not (session.config.option.collectonly or session.shouldfail or session.shouldstop):
            try:
                self._measure_again()
                self.not_again = NO_FIGURE
            except RunError as error:
                self.again, self.not_again = {}, str(error)
        return done

    def _measure_again(self) -> None:
        """Measure suspects in new processes, since this one would have the same memory layout again."""
        with tempfile.TemporaryDirectory(prefix="flashinfer-perf-") as folder:

            def measure(nth: int, suspects: Sequence[Judged]) -> Judgement:
                tests = [judged.case.after[0].fullname for judged in suspects]
                return judge(self.base, [measured(self.config, tests, Path(folder, str(nth)))], self.rules)

            self.again = confirmation.remeasure(self.judgement.having(Verdict.SLOWER), measure)

    @functools.cached_property
    def judgement(self) -> Judgement:
        """Judge this session, once: after its last test, so that no row comes later."""
        left = tuple(case for of_test in self.unmeasured.values() for case in of_test)
        block, machine = Block(unmeasured=left, parts=self.parts()), provenance.machine(self.config)
        now, rows = datetime.now(timezone.utc), tuple(self.rows.values())
        return judge(self.base, [Run(source=NAME, when=now, rows=rows, machine=machine, block=block)], self.rules)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Set the exit code, unless pytest has set one itself."""
        if session.config.option.collectonly or session.exitstatus not in JUDGED:
            return
        code = self._judge() if self.base else NOTHING_WORSE
        name = self.config.getoption("perf_save_baseline")
        if name and self.rows:
            self.lines += wrapped(_saved(name, list(self.rows.values())))
        elif name and code == NOTHING_WORSE:
            self.lines.append(NOTHING_TO_SAVE)
            code = COULD_NOT_JUDGE
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = code

    def _judge(self) -> int:
        judgement = confirm(self.judgement, self.again, self.not_again)
        self.lines += words.lines(judgement)
        self.commands += loading.joined(self.config.hook.pytest_perf_judged(judgement=judgement))
        return judgement.exit_code

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.section("flashinfer-perf gate")
        write_lines(terminalreporter, self.lines)
        for command in self.commands:
            terminalreporter.write_line(command)


def measured(config: pytest.Config, tests: Sequence[str], folder: Path) -> Run:
    """Run these tests alone, with the options of this session; raises RunError if they cannot be measured."""
    folder.mkdir()
    here, start = config.invocation_params, (sys.executable, "-m", "pytest")
    again = Environment("this session", (*start, *here.args), here.dir, {CONFIRMS: "1"})
    files_of_its_own = [f"--benchmark-storage=file://{folder}"]  # it overwrites no file of this session
    if config.pluginmanager.hasplugin("cacheprovider"):
        files_of_its_own.append(f"--override-ini=cache_dir={folder}")
    if config.getoption("xmlpath", None):
        files_of_its_own.append(f"--junitxml={folder / 'junit.xml'}")
    done = processes.ran(again, files_of_its_own, folder / "run", tests)
    if done.code not in (processes.PASSED, processes.TESTS_FAILED):
        raise RunError(f"not measured again, its process exited with code {done.code}: {processes.end(done.log, 1)}")
    return done.run
