"""The processes of a report: fresh ones that tune, then one that races, started again after a tactic that ended it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, fields, file_io, formatting, printing, processes
from pytest_flashinfer_perf.extensions.compare import sides
from pytest_flashinfer_perf.extensions.tuner.loop import PLUGIN, SPOILED
from pytest_flashinfer_perf.extensions.tuner.results import TUNE, CaseRace, LeftOut
from pytest_flashinfer_perf.extensions.tuner.search import TuneJob

MOST_PROCESSES = 50
TO_BLAME = ("tactic", "starts")  # events after which a process that ends is started again


class TunerRunError(FlashinferPerfError):
    """A process of the report ended without a tactic to blame."""


@dataclass
class Runs:
    """The processes for pytest's arguments, with all that they said, in a folder with their logs."""

    arguments: Sequence[str]
    tunes: int
    job: TuneJob
    folder: Path
    picks: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)

    def cases(self) -> tuple[list[CaseRace], list[LeftOut]]:
        """Tune as often as asked, then race: the cases with what was found, and those that were left out."""
        untuned = [left for nth in range(1, self.tunes + 1) for left in self._tuned(f"{TUNE}{nth}", f"tune-{nth}")]
        where = str(self.folder / "race.jsonl")
        events = self._ran(replace(self.job, output=where, picks=self.picks), "race")
        cases = [fields.read(CaseRace, event["found"], where) for event in events if "found" in event]
        return cases, [*untuned, *(fields.read(LeftOut, event, where) for event in events if "outcome" in event)]

    def _tuned(self, way: str, name: str) -> list[LeftOut]:
        """Tune in a fresh process; the cases where that failed."""
        ended = self._ran(TuneJob(str(self.folder / f"{name}.jsonl"), tune=True), way)
        for case in ended:
            if "picked" in case:
                self.picks.setdefault(case["case"], {})[way] = case["picked"]
        failed = (case for case in ended if case.get("outcome") == "failed")
        return [LeftOut(case["case"], "failed", f"{way}: {case['why']}") for case in failed]

    def _ran(self, job: TuneJob, title: str) -> list[dict[str, Any]]:
        """Run the process to its end, and again without what it ended with, as long as it says what that is."""
        by_case: dict[str, dict[str, Any]] = {}
        reported = 0
        for nth in range(1, MOST_PROCESSES + 1):
            code, log = self._process(job, nth)
            events, why = _read(Path(job.output)), _ended(code, log)
            by_case |= {event["case"]: event for event in events if event["event"] == "case"}
            new, reported = events[reported:], len(events)
            if not new or (last := new[-1])["event"] not in TO_BLAME:
                break
            if last["event"] != "tactic":
                by_case[last["case"]] = _failed(last["case"], why)
            job = replace(job, done=tuple(by_case), crashed=_blamed(job.crashed, last, why))
        if not events:
            raise TunerRunError(f"{title}: {why}, full log: {log}\n{processes.end(log, sides.LINES_OF_LOG)}")
        self.versions, all_cases = events[0]["versions"], events[0]["cases"]
        lost = [_failed(case, f"not looked at: {why}, full log: {log}") for case in all_cases if case not in by_case]
        printing.say(f"{title}: {formatting.counted(len(by_case), 'case')}" + f", {len(lost)} lost" * bool(lost))
        return [*by_case.values(), *lost]

    def _process(self, job: TuneJob, nth: int) -> tuple[int, Path]:
        log = Path(job.output).with_suffix(f".{nth}.log" if nth > 1 else ".log")
        with tempfile.TemporaryDirectory() as folder:
            job_file = Path(folder, "job.json")
            file_io.write_json(job_file, asdict(job))
            words = (sys.executable, "-m", "pytest", "-p", PLUGIN, f"--tuner-job={job_file}")
            return processes.started(processes.Environment("tuner", words), self.arguments, log), log


def _ended(code: int, log: Path) -> str:
    for reason, of_it in SPOILED.items():
        if code == of_it:
            return reason
    return (
        "it did not end within --perf-timeout"
        if processes.TIMED_OUT in log.read_text(encoding="utf-8", errors="replace")
        else f"it ended its process with code {code}"
    )


def _failed(case: str, why: str) -> dict[str, Any]:
    return {"case": case, "outcome": "failed", "why": why}


def _read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _blamed(crashes: Mapping[str, Mapping[str, str]], last: Mapping[str, Any], why: str) -> dict[str, dict[str, str]]:
    """Add the tactic whose turn it was when the process ended."""
    blamed = {case: dict(reasons) for case, reasons in crashes.items()}
    if last["event"] == "tactic":
        blamed.setdefault(last["case"], {})[last["tactic"]] = why
    return blamed
