"""The gate in a run of pytest: this session judged against a baseline, suspects measured again, the exit code set."""

from __future__ import annotations

import functools
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.project_file import ProjectFile
from pytest_flashinfer_perf.gate import calibration, github, likeness, runs, table, thresholds
from pytest_flashinfer_perf.gate.calibration import CalibrationError
from pytest_flashinfer_perf.gate.decide import confirm
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.runs import Run
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, Judgement, Rules, Verdict
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin import confirmation
from pytest_flashinfer_perf.running import attempts, unmeasured
from pytest_flashinfer_perf.runs.run_file import SCHEMA_KEY, RunError

NAME = "this session"
JUDGED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
LEFT_OUT = {"outcome": "deselected", "reason": "left out by -k, -m, --deselect or --perf-only"}
NOTHING_TO_SAVE = "--perf-save-baseline: nothing was measured, nothing is saved"


def start(config: pytest.Config, project: ProjectFile) -> None:
    if config.getoption("perf_save_baseline"):
        _save_as(config, config.getoption("perf_save_baseline"))
    config.pluginmanager.register(Gate(config, _rules(config, project)), "flashinfer-perf-gate")


def _rules(config: pytest.Config, project: ProjectFile) -> Rules:
    return Rules(
        thresholds=thresholds.read(project),
        allowed=likeness.allowed(config.getoption("perf_gate_allow")),
        strict=config.getoption("perf_gate_strict"),
    )


def _save_as(config: pytest.Config, name: str) -> None:
    """A baseline is what pytest-benchmark saves, samples included; it reads these when it is configured, after us."""
    if config.getoption("benchmark_save"):
        raise pytest.UsageError("--perf-save-baseline is --benchmark-save with samples: use one of them")
    config.option.benchmark_save = name
    config.option.benchmark_save_data = True


@dataclass(eq=False)  # before pytest 9.1 a plugin has to be hashable
class Gate:
    """Gathers rows from reports, by their tests, and judges them when the session ends."""

    config: pytest.Config
    rules: Rules
    base: list[Run] = field(default_factory=list)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: list[Run] = field(default_factory=list)
    not_again: str = ""
    unmeasured: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def pytest_sessionstart(self) -> None:
        """Before anything is measured: a baseline that cannot be read is no reason to measure for an hour."""
        baseline = self.config.getoption("perf_gate")
        if baseline is None:
            return
        storage = Path(self.config.getoption("benchmark_storage").removeprefix("file://"))
        try:
            self.base = runs.read([baseline], storage)
        except RunError as error:
            pytest.exit(f"--perf-gate: {error}", returncode=COULD_NOT_JUDGE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        measured = _record(item) if report.when == "call" and report.passed else None
        if measured is not None:
            report.perf_record = json.dumps(measured)  # type: ignore[attr-defined] # reports carry what they get
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if attempts.begins(report):
            self.records.pop(report.nodeid, None)
            self.unmeasured.pop(report.nodeid, None)
        if hasattr(report, "perf_record"):
            self.records[report.nodeid] = json.loads(report.perf_record)
        elif not report.passed:
            self.unmeasured.setdefault(report.nodeid, []).append(_unmeasured(report))

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self.unmeasured |= {item.nodeid: [{"case": item.nodeid, **LEFT_OUT}] for item in items}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        done = yield
        if self.base and not (session.config.option.collectonly or session.shouldfail or session.shouldstop):
            self._measure_again()
        return done

    def _measure_again(self) -> None:
        suspects = [judged.case.after[0].fullname for judged in self.judged().having(Verdict.SLOWER)]
        try:
            self.again = confirmation.measured(self.config, suspects) if suspects else []
        except RunError as error:
            self.not_again = str(error)

    def judged(self) -> Judgement:
        return self._against_base(self._run(list(self.records.values())))

    def _against_base(self, head: Run) -> Judgement:
        try:
            found = calibration.find(self.config.getoption("perf_calibration"), head.gpus)
        except CalibrationError as error:
            return replace(judge(self.base, [head], self.rules), refusals=(str(error),))
        return judge(self.base, [head], replace(self.rules, calibrations=tuple(found)))

    def _run(self, records: list[dict[str, Any]]) -> Run:
        now = datetime.now(timezone.utc).isoformat()
        left = [case for of_test in self.unmeasured.values() for case in of_test]
        document = {"benchmarks": records, "machine_info": self._machine, "datetime": now}
        return runs.parsed({**document, SCHEMA_KEY: {"unmeasured": left}}, NAME)

    @functools.cached_property
    def _machine(self) -> dict[str, Any]:
        return provenance.machine(self.config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """pytest's own codes stand."""
        if session.config.option.collectonly or session.exitstatus not in JUDGED:
            return
        code = self._judge() or self._saved()
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = code

    def _judge(self) -> int:
        if not self.base:
            return NOTHING_WORSE
        judgement = confirm(self.judged(), self._changes_again(), self.not_again)
        self.lines += (*table.lines(judgement), *github.told(judgement))
        return judgement.exit_code

    def _changes_again(self) -> dict[str, list[float]]:
        """Of what each suspect was suspected for."""
        domains = {one.name: one.primary.seen.domain for one in self.judged().cases if one.primary}
        changes: dict[str, list[float]] = {}
        for run in self.again:
            for judged in self._against_base(run).cases:
                effect = judged.effect_in(domains.get(judged.name, ""))
                if effect:
                    changes.setdefault(judged.name, []).append(effect.change)
        return changes

    def _saved(self) -> int:
        if not self.config.getoption("perf_save_baseline") or self.records:
            return NOTHING_WORSE
        self.lines.append(NOTHING_TO_SAVE)
        return COULD_NOT_JUDGE

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.lines:
            terminalreporter.section("flashinfer-perf gate")
        for line in self.lines:
            terminalreporter.write_line(line)


def _unmeasured(report: pytest.TestReport) -> dict[str, Any]:
    """As the file of this run has it; a test without the perf fixture is known by its id."""
    if hasattr(report, "perf_unmeasured"):
        return dict(json.loads(report.perf_unmeasured))
    return unmeasured.of(report, {"case": report.nodeid})


def _record(item: pytest.Item) -> dict[str, Any] | None:
    """What pytest-benchmark will write of this test, without the samples."""
    stats = getattr((getattr(item, "funcargs", None) or {}).get("benchmark"), "stats", None)
    if not stats:
        return None
    whole = stats.as_dict(include_data=False)
    return {name: whole[name] for name in ("name", "fullname", "extra_info", "stats")}
