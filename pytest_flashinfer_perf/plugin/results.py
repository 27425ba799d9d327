"""What a session measured: gathered from its test reports, shown at its end, and written to files.

`Board` reads the reports of all processes, and `add` puts onto each report what it reads. `ResultFiles` writes
pytest-benchmark's file whole, and `verify` tries each output before anything is measured.
"""

from __future__ import annotations

import fnmatch
import functools
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.files import verify_outputs, write_json
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin import options, terminal
from pytest_flashinfer_perf.printing import safe_lines, write_lines
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.formatting import duration, software, wrapped
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import FAILED, SCHEMA_KEY, Block, RunError, Unmeasured
from pytest_flashinfer_perf.session import benchmark_rows, reports, stash
from pytest_flashinfer_perf.session.reports import CaseReport
from pytest_flashinfer_perf.session.setup import json_of
from pytest_flashinfer_perf.session.stash import SETTINGS
from pytest_flashinfer_perf.settings.project_file import QUARANTINED
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.settings.usage import not_written

NOTHING = "nothing was measured, for the reasons above"
NOT_TIMED = "--benchmark-disable: answers were checked, and nothing was timed"
PROFILED_ELSEWHERE = (
    "--benchmark-cprofile: nothing of tests with perf, whose calls are made before pytest-benchmark's: "
    "python -m cProfile -m pytest ... sees the host's part, nsys and ncu the kernels' (docs/profile.md)"
)
OF_ITS_TABLE = ("benchmark_verbose", "benchmark_compare", "benchmark_histogram", "benchmark_cprofile")


BOARD: pytest.StashKey[Board] = pytest.StashKey()  # of the config


class Board:
    """Collects rows and skips from test reports, also of other processes; `is_ours` if any belongs to a case."""

    def __init__(self) -> None:
        self.of_run: dict[str, Callable[[], Any]] = {}  # what extensions add to the file, made when it is written
        self._carried: dict[str, list[CaseReport]] = {}  # of the last attempt of each test
        self.shown: set[str] = set()  # tests whose rows are in a table already
        self.notes: list[str] = []
        self.is_ours = False
        self.is_part = False  # of a run, whose file is wanted even if it has no test

    def block_parts(self) -> dict[str, Any]:
        return {name: make() for name, make in self.of_run.items()}

    @property
    def rows(self) -> list[Row]:
        return self._all("row")

    @property
    def rows_to_show(self) -> list[Row]:
        return [row for row in self.rows if row.fullname not in self.shown]

    @property
    def unmeasured(self) -> list[Unmeasured]:
        return self._all("unmeasured")

    @property
    def block(self) -> Block:
        measured = [one for of_test in self._carried.values() for one in of_test if one.row]
        roofs = {one.row.identity.place: one.roofs for one in measured if one.row}
        return Block(roofs=roofs, unmeasured=tuple(self.unmeasured), parts=self.block_parts())

    def parts(self, name: str) -> list[Any]:
        """The parts that the extension of this name has put on the reports of tests."""
        return [parts[name] for parts in self._all("parts") if name in parts]

    def _all(self, name: str) -> list[Any]:
        """The values that the reports of all tests carried under this name."""
        values = (getattr(one, name) for of_test in self._carried.values() for one in of_test)
        return [value for value in values if value]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test, carried = report.nodeid, reports.of(report)
        self.is_ours |= carried.repeat is not None or carried.unmeasured is not None
        if reports.begins_attempt(report):
            self._carried.pop(test, None)
        if carried != reports.NOTHING:
            self._carried.setdefault(test, []).append(carried)

    def is_due(self, session: pytest.Session) -> bool:
        """Whether a file of this run is to be written, if only with the reasons why it has no row."""
        return self.is_ours or (self.is_part and session.exitstatus in ENDED)

    def reasons(self, outcome: str) -> list[str]:
        """The reasons of this outcome, without the line of a file where each was met."""
        return [case.reason.removeprefix(f"{case.line}: ") for case in self.unmeasured if case.outcome == outcome]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v, show a measured case's time beside PASSED."""
        row = reports.of(report).row
        if report.when != "call" or not report.passed or row is None:
            return None
        return report.outcome, ".", f"PASSED {duration(row.median)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.rows and session.config.getoption("benchmark_cprofile", None):
            self.notes.append(PROFILED_ELSEWHERE)
        _spare_hypothesis(session.config.pluginmanager)
        if self.is_ours and session.config.getoption("benchmark_disable", None):
            self.notes.append(NOT_TIMED)

    @pytest.hookimpl(specname="pytest_terminal_summary", tryfirst=True)
    def pytest_terminal_summary_without_another_table(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Leave pytest-benchmark's table out, unless it has other rows or was asked for: ours has the same cases."""
        benchmarks: Any = terminalreporter.config.pluginmanager.get_plugin("pytest-benchmark")
        ours = {row.fullname for row in self.rows}
        if ours and not any(map(terminalreporter.config.getoption, OF_ITS_TABLE)):
            benchmarks.quiet |= ours >= {one.fullname for one in benchmarks.benchmarks}

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show our table after all others."""
        config, rows, checked = terminalreporter.config, self.rows, self._all("checked")
        added = list(loading.joined(config.hook.pytest_perf_terminal(config=config, rows=rows)))
        skips, xfailed = self.reasons("skipped"), self.reasons("xfailed")
        failed = (case for case in self.unmeasured if case.outcome == FAILED and case.line is not None)
        not_understood = [case.reason.removeprefix("Failed: ") for case in failed]  # lines of testlists
        if not (rows or skips or xfailed or not_understood or checked or added or self.notes):
            return
        terminalreporter.section("flashinfer-perf")
        write_lines(terminalreporter, wrapped(software(provenance.versions())) if rows else [])
        write_lines(terminalreporter, terminal.lines(rows, skips, checked, xfailed, self.rows_to_show))
        write_lines(terminalreporter, terminal.left("not understood", not_understood, "line"))
        write_lines(terminalreporter, added)
        is_nothing = skips and not (rows or checked or added)
        write_lines(terminalreporter, [NOTHING, *self.notes] if is_nothing else self.notes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.is_ours:
            output_json[SCHEMA_KEY] = self.block.written()

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.is_ours:
            _ours(machine_info)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> None:
        """Add this machine's GPU and versions before pytest-benchmark compares them with those of a saved run."""
        if SCHEMA_KEY in compared_benchmark:
            _ours(machine_info)


def _spare_hypothesis(manager: pytest.PytestPluginManager) -> None:
    """Leave its plugin out of the summary, for which it imports all of hypothesis: 0.7 s, if no test has used that."""
    plugin = manager.get_plugin("hypothesispytest")
    if plugin and "hypothesis" not in sys.modules:
        manager.unregister(plugin)


def _ours(machine_info: dict[str, Any]) -> None:
    machine_info |= provenance.versions()
    for reading in ("hz_actual", "hz_actual_friendly"):  # differs at every start, which would warn at every comparison
        machine_info.get("cpu", {}).pop(reading, None)


# Attach the row, the check and the repro commands to a test's report.


def add(item: pytest.Item, report: pytest.TestReport) -> None:
    if stash.ROW in item.stash:
        row, options = benchmark_rows.finished(item, item.stash[stash.ROW], item.stash[stash.BENCHMARK])
        reports.add(report, row=row, options=options, roofs=item.stash[stash.ROOFS])
    reports.add(report, checked=item.stash.get(stash.CHECKED, None), parts=item.stash.get(stash.PARTS, {}))
    if report.failed and stash.INSTEAD not in item.config.stash:  # which names its commands itself
        case = stash.case_of(item)
        other = item.ihook.pytest_perf_repeat(case=case) if case else None
        commands = [stash.repeat(item, from_here=True), *([other] if other is not None else [])]
        report.sections.append(("run it again", safe_lines("\n".join(commands))))


def make_printable(report: pytest.TestReport) -> None:
    """Make printable what pytest prints as it is: sentences of skips and failures, and lines of tracebacks."""
    shown: Any = report.longrepr
    if isinstance(shown, str):
        report.longrepr = safe_lines(shown)
    elif isinstance(shown, tuple):
        path, line, reason = shown
        report.longrepr = (path, line, safe_lines(reason))
    elif isinstance(shown, ExceptionChainRepr):
        for traceback, crash, _ in shown.chain:
            for entry in traceback.reprentries:
                entry.lines = [safe_lines(line) for line in entry.lines]
            if crash is not None:
                crash.message = safe_lines(crash.message)


def name_line(item: pytest.Item, report: pytest.TestReport, failure: pytest.ExceptionInfo[BaseException]) -> None:
    """Add the line of the test to a sentence without a traceback, which tools that annotate lines look for.

    A test that is not written in its file, as those that are made for a routine, has no line there.
    """
    path, first, _ = item.location
    if (item.session.config.rootpath / path).resolve() != item.path.resolve():
        return
    lines = [entry.lineno + 1 for entry in failure.traceback if entry.path == item.path]
    where = f"  at {safe_lines(path)}:{lines[-1] if lines else (first or 0) + 1}"
    shown: Any = report.longrepr
    if isinstance(shown, str):
        report.longrepr = f"{shown}\n{where}"
    elif isinstance(shown, ExceptionChainRepr) and shown.reprtraceback.style == "value":
        last = shown.reprtraceback.reprentries[-1]
        last.lines = [*last.lines, where]


def fail_strict_skip(item: pytest.Item, report: pytest.TestReport, reason: str) -> None:
    """Fail what must not be skipped, unless the settings file says that it is known to be broken."""
    if reason.startswith(QUARANTINED):
        return
    names = (item.nodeid, item.name, item.name.partition("[")[2].rstrip("]"))
    for glob in item.config.stash[SETTINGS].strict_skips:
        if any(fnmatch.fnmatchcase(name, glob) for name in names):
            report.outcome = "failed"
            report.when = "call"  # a failure, where pytest would call one at set-up an error
            report.longrepr = f"--perf-strict-skips={glob} does not allow this skip: {reason}"


# The files that a session writes: each is tried beforehand, and none is a file that the session reads.

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def verify(config: pytest.Config, settings: Settings) -> None:
    """Raise before anything is measured, if a file cannot be written or must not be."""
    here = config.invocation_params.dir
    named = {"--benchmark-json": json_of(config), "--junitxml": config.getoption("xmlpath", None)}
    outputs = {option: here / path if path else None for option, path in named.items()}
    for one in options.of_all(config):
        if one.writes is not None and (path := config.getoption(one.dest)):
            outputs[one.name] = here / path / one.writes
    folder = config.getoption("benchmark_storage", "").removeprefix("file://")
    outputs["--benchmark-storage"] = here / folder / "any.json" if _saves(config) and "://" not in folder else None
    programs = [path for path in outputs.values() if path and path.suffix == ".py"]
    verify_outputs(outputs, [*_read(config, settings), *programs])


def writes(config: pytest.Config) -> bool:
    """Whether pytest-benchmark's files are asked for."""
    return json_of(config) is not None or _saves(config)


def _saves(config: pytest.Config) -> bool:
    options = ("perf_save_baseline", "benchmark_save", "benchmark_autosave")
    return any(config.getoption(option, None) for option in options)


def _read(config: pytest.Config, settings: Settings) -> Iterator[Path]:
    """Give the files that the session reads, as far as they are known before tests are collected."""
    here = config.invocation_params.dir
    for value in (config.getoption(one.dest) for one in options.of_all(config) if one.reads):
        yield from (here / path for path in (value if isinstance(value, list) else [value]) if path)
    yield from (here / argument.partition("::")[0] for argument in config.args)
    yield from filter(None, (settings.project.path, config.inipath))
    baseline = config.getoption("perf_gate")
    if baseline:
        with suppress(RunError):  # which is said where it is read
            yield from run_file.files(baseline, run_file.storage_of(config.getoption("benchmark_storage")))


class ResultFiles:
    """Writes the file of `--benchmark-json` and the saved run, instead of pytest-benchmark."""

    def __init__(self, config: pytest.Config, board: Board) -> None:
        self._config = config
        self._board = board
        self._path = json_of(config)
        self._written = False
        self._lost: dict[str, OSError] = {}

    def _write(self, document: Any) -> None:
        self._written = True
        if self._path is not None:
            self._try("--benchmark-json", self._path, document)

    def _save_in(self, storage: Any, document: Any, name: str) -> None:
        self._try("--benchmark-storage", storage.get(f"{storage._next_num}_{name}.json"), document)  # noqa: SLF001

    def _try(self, option: str, path: Path, document: Any) -> None:
        try:
            write_json(path, document, indent=4)
        except OSError as error:
            self._lost[option] = error

    @pytest.hookimpl(specname="pytest_sessionfinish", wrapper=True, tryfirst=True)
    def pytest_sessionfinish_before_all_others(self, session: pytest.Session) -> Generator[None, object, object]:
        """Silence pytest-benchmark's warning that it saves nothing, where this class writes or nothing ran."""
        benchmarks: Any = self._config.pluginmanager.get_plugin("pytest-benchmark")
        if benchmarks is not None:
            benchmarks.save_json = self._write
            if hasattr(benchmarks.storage, "get"):  # a folder
                benchmarks.storage.save = functools.partial(self._save_in, benchmarks.storage)
        is_explained = self._is_due(session) or session.exitstatus not in ENDED
        if is_explained and not _saves(self._config):
            warnings.filterwarnings("ignore", message="Not saving anything, no benchmarks have been run")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Runs after pytest-benchmark's own hook, which is a wrapper, and after the gate, which judges in any case."""
        if self._is_due(session) and not self._written:
            hook = self._config.hook
            of_run = {"machine_info": provenance.machine(self._config)}
            of_run["commit_info"] = hook.pytest_benchmark_generate_commit_info(config=self._config)
            document = hook.pytest_benchmark_generate_json(
                config=self._config, benchmarks=[], include_data=True, **of_run
            )
            hook.pytest_benchmark_update_json(config=self._config, benchmarks=[], output_json=document)
            self._write(document)
            if "--benchmark-json" not in self._lost:
                self._board.notes.append(f"{self._path}: no case was measured, the file has the reasons and no rows")
        self._board.notes += [not_written(session, option, error) for option, error in self._lost.items()]

    def _is_due(self, session: pytest.Session) -> bool:
        return self._path is not None and self._board.is_due(session)
