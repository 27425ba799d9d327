"""What a session measured: gathered from its test reports, shown at its end, and written to files.

`Board` reads the reports of all processes, and `add` puts onto each report what it reads. `ResultFiles` writes
pytest-benchmark's file whole, and `verify` tries each output before anything is measured.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr

from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.config.usage import not_written
from pytest_flashinfer_perf.files import verify_outputs, write_json
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin import incompatible
from pytest_flashinfer_perf.printing import safe_lines, write_lines
from pytest_flashinfer_perf.report import host, terminal, vllm
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.formatting import duration
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import FAILED, SCHEMA_KEY, Block, Roof, RunError, Unmeasured
from pytest_flashinfer_perf.rows.step import StepPlan
from pytest_flashinfer_perf.session import benchmark_rows, reports, stash
from pytest_flashinfer_perf.session.journal import json_of
from pytest_flashinfer_perf.session.stash import SETTINGS

NOTHING = "nothing was measured, for the reasons above"
NOT_TIMED = "--benchmark-disable: answers were checked, and nothing was timed"
NO_CSV = "--perf-vllm-csv: nothing written, no case of vllm_decode was measured as trtllm and as baseline"


class Board:
    """Collects rows and skips from test reports, also of other processes; `is_ours` if any belongs to a case."""

    def __init__(self, step: Callable[[], StepPlan | None]) -> None:
        self.step = step  # of a model, if the session measures one
        self._rows: dict[str, Row] = {}
        self._unmeasured: dict[str, list[Unmeasured]] = {}
        self._checked: dict[str, str] = {}
        self._searches: dict[str, Mapping[str, Any]] = {}
        self._roofs: dict[str, Mapping[str, Roof]] = {}
        self.notes: list[str] = []
        self.is_ours = False

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def unmeasured(self) -> list[Unmeasured]:
        return [case for of_test in self._unmeasured.values() for case in of_test]

    @property
    def block(self) -> Block:
        return Block(roofs=self._roofs, unmeasured=tuple(self.unmeasured), step=self.step())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test, carried = report.nodeid, reports.of(report)
        self.is_ours |= carried.repeat is not None or carried.unmeasured is not None
        if report.when == "setup":
            self._forget(test, row=reports.begins_attempt(report))
        if carried.row:
            self._rows[test] = carried.row
            self._roofs[carried.row.identity.place] = carried.roofs
        if carried.unmeasured:
            self._unmeasured.setdefault(test, []).append(carried.unmeasured)
        if carried.search:
            self._searches[test] = carried.search
        if carried.checked:
            self._checked[test] = carried.checked

    def _forget(self, test: str, *, row: bool) -> None:
        """Drop the results of an earlier attempt."""
        self._unmeasured.pop(test, None)
        self._searches.pop(test, None)
        self._checked.pop(test, None)
        if row:
            self._rows.pop(test, None)

    def reasons(self, outcome: str) -> list[str]:
        """The reasons of this outcome, without the line of a file where each was met."""
        return [case.reason.removeprefix(f"{case.line}: ") for case in self.unmeasured if case.outcome == outcome]

    def _not_understood(self) -> list[str]:
        """The errors of testlists' lines that could not be understood."""
        failed = (case for case in self.unmeasured if case.outcome == FAILED and case.line is not None)
        return [case.reason.removeprefix("Failed: ") for case in failed]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v, show a measured case's time beside PASSED."""
        row = reports.of(report).row
        if report.when != "call" or not report.passed or row is None:
            return None
        return report.outcome, ".", f"PASSED {duration(row.median)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._rows:
            self.notes += incompatible.notes(session.config)
            incompatible.spare_hypothesis(session.config)
        if self.is_ours and session.config.getoption("benchmark_disable", None):
            self.notes.append(NOT_TIMED)
        folder = session.config.getoption("perf_vllm_csv")
        if folder is None or session.config.option.collectonly or hasattr(session.config, "workerinput"):
            return
        try:
            path = vllm.write_csv(self.rows, Path(folder), datetime.now().astimezone())
        except OSError as error:
            self.notes.append(not_written(session, "--perf-vllm-csv", error))
            return
        self.notes.append(f"wrote {path}" if path else NO_CSV)
        if path is None and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows, checked, searches = self.rows, list(self._checked.values()), list(self._searches.values())
        skips, xfailed = self.reasons("skipped"), self.reasons("xfailed")
        not_understood = self._not_understood()
        if not (rows or skips or xfailed or not_understood or checked or searches or self.notes):
            return
        terminalreporter.section("flashinfer-perf")
        write_lines(terminalreporter, terminal.lines(rows, skips, _known() if rows else {}, checked, xfailed))
        write_lines(terminalreporter, terminal.left("not understood", not_understood, "line"))
        if terminalreporter.config.getoption("perf_host"):
            write_lines(terminalreporter, host.lines(rows))
        write_lines(terminalreporter, terminal.search_lines(searches))
        is_nothing = skips and not (rows or checked or searches)
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


def _ours(machine_info: dict[str, Any]) -> None:
    machine_info |= _known()
    for reading in ("hz_actual", "hz_actual_friendly"):  # differs at every start, which would warn at every comparison
        machine_info.get("cpu", {}).pop(reading, None)


def _known() -> dict[str, Any]:
    from pytest_flashinfer_perf.machine import provenance

    return provenance.versions()


# Attach the row, the check and the repro commands to a test's report.


def add(item: pytest.Item, report: pytest.TestReport) -> None:
    if stash.ROW in item.stash:
        row, options = benchmark_rows.finished(item, item.stash[stash.ROW], item.stash[stash.BENCHMARK])
        reports.add(report, row=row, options=options, roofs=item.stash[stash.ROOFS])
        for known in (item.user_properties, report.user_properties):
            run_file.put(row, known)
    reports.add(report, checked=item.stash.get(stash.CHECKED, None), search=item.stash.get(stash.SEARCH, None))
    if report.failed and not item.config.stash[SETTINGS].fuzzing.on:  # a search names the command itself
        report.sections.append(("run it again", safe_lines("\n".join(_commands(item)))))


def _commands(item: pytest.Item) -> Iterator[str]:
    """The command of this project, and that of upstream's script if it has the case."""
    from pytest_flashinfer_perf.routines import upstream_command

    yield stash.repeat(item, from_here=True)
    case = stash.case_of(item)
    upstream = upstream_command.command(case) if case else None
    if upstream is not None:
        yield upstream


def make_printable(report: pytest.TestReport) -> None:
    """What pytest prints as it is: the sentences of skips and failures, and the lines of tracebacks."""
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


def fail_strict_skip(item: pytest.Item, report: pytest.TestReport, reason: str) -> None:
    known_as = (item.nodeid, item.name, item.name.partition("[")[2].rstrip("]"))
    for glob in item.config.stash[SETTINGS].strict_skips:
        if any(fnmatch.fnmatchcase(name, glob) for name in known_as):
            report.outcome = "failed"
            report.when = "call"  # a failure, where pytest would call one at set-up an error
            report.longrepr = f"--perf-strict-skips={glob} does not allow this skip: {reason}"


# The files that a session writes: each is tried beforehand, and none is a file that the session reads.

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
READ = (
    *("perf_testlist", "perf_model", "perf_config", "perf_shard_by"),
    *("perf_trace_config", "perf_only", "perf_plant", "perf_plan"),
)
FOLDERS = {"perf_vllm_csv": "any.csv", "perf_findings": "any.json"}


def verify(config: pytest.Config, settings: Settings) -> None:
    """Raise before anything is measured, if a file cannot be written or must not be."""
    here = config.invocation_params.dir
    named = {"--benchmark-json": json_of(config), "--junitxml": config.getoption("xmlpath", None)}
    named |= {f"--perf-{name}": config.getoption(f"perf_{name}") for name in ("html", "csv")}
    outputs = {option: here / path if path else None for option, path in named.items()}
    for name, any_file in FOLDERS.items():
        folder = config.getoption(name)
        outputs[f"--{name.replace('_', '-')}"] = here / folder / any_file if folder else None
    if settings.fuzzing.on:
        outputs["--perf-findings"] = settings.fuzzing.findings / "any.json"
    outputs["--benchmark-storage"] = _storage(config) if _saves(config) else None
    programs = [path for path in outputs.values() if path and path.suffix == ".py"]
    verify_outputs(outputs, [*_read(config, settings), *programs])


def _saves(config: pytest.Config) -> bool:
    options = ("perf_save_baseline", "benchmark_save", "benchmark_autosave")
    return any(config.getoption(option, None) for option in options)


def _storage(config: pytest.Config) -> Path | None:
    """A file of the folder, None for a storage that is not one."""
    folder = config.getoption("benchmark_storage").removeprefix("file://")
    return None if "://" in folder else config.invocation_params.dir / folder / "any.json"


def _read(config: pytest.Config, settings: Settings) -> Iterator[Path]:
    """Files that the session reads, as far as it is known before tests are collected."""
    here = config.invocation_params.dir
    for name in READ:
        value = config.getoption(name)
        yield from (here / path for path in (value if isinstance(value, list) else [value]) if path)
    yield from (here / argument.partition("::")[0] for argument in config.args)
    yield from filter(None, (settings.project.path, config.inipath))
    baseline = config.getoption("perf_gate")
    if baseline:
        with suppress(RunError):  # which is said where it is read
            yield from read.files(baseline, read.storage_of(config.getoption("benchmark_storage")))


class ResultFiles:
    """Writes the file of `--benchmark-json` and the saved run, instead of pytest-benchmark."""

    def __init__(self, config: pytest.Config, board: Board) -> None:
        self._config = config
        self._board = board
        self._path = json_of(config)
        self._written = False
        self._lost: dict[str, OSError] = {}

    def _take_over(self) -> None:
        benchmarks: Any = self._config.pluginmanager.get_plugin("pytest-benchmark")
        if benchmarks is not None:
            benchmarks.save_json = self._write
            if hasattr(benchmarks.storage, "get"):  # a folder
                benchmarks.storage.save = self._save_in(benchmarks.storage)

    def _write(self, document: Any) -> None:
        self._written = True
        if self._path is not None:
            self._try("--benchmark-json", self._path, document)

    def _save_in(self, storage: Any) -> Any:
        def save(document: Any, name: str) -> None:
            self._try("--benchmark-storage", storage.get(f"{storage._next_num}_{name}.json"), document)  # noqa: SLF001

        return save

    def _try(self, option: str, path: Path, document: Any) -> None:
        try:
            write_json(path, document, indent=4)
        except OSError as error:
            self._lost[option] = error

    @pytest.hookimpl(specname="pytest_sessionfinish", wrapper=True, tryfirst=True)
    def pytest_sessionfinish_before_all_others(self, session: pytest.Session) -> Generator[None, object, object]:
        """Also silences pytest-benchmark's warning that it saves nothing, where this class writes or nothing ran."""
        self._take_over()
        is_known = self._is_due(session) or session.exitstatus not in ENDED
        if is_known and not _saves(self._config):
            warnings.filterwarnings("ignore", message="Not saving anything, no benchmarks have been run")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Runs after pytest-benchmark's own hook, which is a wrapper, and after the gate, which judges in any case."""
        if self._is_due(session) and not self._written:
            self._write(self._without_rows())
            if "--benchmark-json" not in self._lost:
                self._board.notes.append(f"{self._path}: no case was measured, the file has the reasons and no rows")
        self._board.notes += [not_written(session, option, error) for option, error in self._lost.items()]

    def _is_due(self, session: pytest.Session) -> bool:
        is_whole_shard = self._config.getoption("perf_shard") and session.exitstatus in ENDED
        return self._path is not None and bool(self._board.is_ours or is_whole_shard)

    def _without_rows(self) -> Any:
        hook = self._config.hook
        of_run = {"machine_info": provenance.machine(self._config)}
        of_run["commit_info"] = hook.pytest_benchmark_generate_commit_info(config=self._config)
        made = hook.pytest_benchmark_generate_json(config=self._config, benchmarks=[], include_data=True, **of_run)
        hook.pytest_benchmark_update_json(config=self._config, benchmarks=[], output_json=made)
        return made
