"""The processes of a report: fresh ones that tune, then one that races, started again after a tactic that ended it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.launch.processes import LINES_OF_LOG, Environment
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.tuner.loop import PLUGIN, TUNE, Job

MOST_RESTARTS = 50


class TunerRunError(FlashinferPerfError):
    """A process of the report ended without a tactic to blame."""


@dataclass(frozen=True)
class Asked:
    """What the command was asked for: pytest's arguments, seconds for a case, fresh tunes, and cache files."""

    arguments: Sequence[str]
    budget: float
    tunes: int
    cache: Path | None = None
    write: Path | None = None


@dataclass
class Runs:
    """Everything that processes said, in a folder with their logs."""

    asked: Asked
    folder: Path
    picks: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)

    def cases(self) -> list[dict[str, Any]]:
        """Tune as often as asked, then race; each case with what was found, skipped ones with the reason."""
        for nth in range(1, self.asked.tunes + 1):
            self._tune(f"{TUNE}{nth}", self.folder / f"tune-{nth}")
        job = Job(
            str(self.folder / "race.jsonl"),
            budget=self.asked.budget,
            cache=None if self.asked.cache is None else str(self.asked.cache.resolve()),
            write=None if self.asked.write is None else str(self.asked.write.resolve()),
            picks=self.picks,
            files=self.files,
        )
        return self._ran(job, "race")

    def _tune(self, way: str, stem: Path) -> None:
        cache = str(stem.with_suffix(".cache.json").resolve())
        found = self._ran(Job(str(stem.with_suffix(".jsonl")), tune=True, cache=cache), way)
        for case in found:
            if case.get("picked"):
                self.picks.setdefault(case["case"], {})[way] = case["picked"]
        if Path(cache).exists():
            self.files[way] = cache

    def _ran(self, job: Job, title: str) -> list[dict[str, Any]]:
        """Run the process to its end, and again without the tactic that it ended with."""
        found: dict[str, dict[str, Any]] = {}
        for _ in range(MOST_RESTARTS):
            code, log = self._process(job)
            events = _read(Path(job.output))
            self.versions = next((event["versions"] for event in events if event["event"] == "begins"), self.versions)
            found |= {event["case"]: event for event in events if event["event"] == "case"}
            if events and events[-1]["event"] == "end":
                say(f"{title}: {counted(len(found), 'case')}")
                return list(found.values())
            job = replace(job, done=tuple(found), crashed=_blamed(job.crashed, events, code, log))
        raise TunerRunError(f"{title}: {MOST_RESTARTS} processes ended before their end, the last log: {log}")

    def _process(self, job: Job) -> tuple[int, Path]:
        log = Path(job.output).with_suffix(".log")
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "job.json")
            write_whole(told, job.text)
            words = (sys.executable, "-m", "pytest", "-p", PLUGIN, f"--tuner-job={told}")
            return processes.started(Environment("tuner", words), self.asked.arguments, log), log


def _read(path: Path) -> list[dict[str, Any]]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _blamed(
    known: Mapping[str, Mapping[str, str]], events: Sequence[Mapping[str, Any]], code: int, log: Path
) -> dict[str, dict[str, str]]:
    """With the tactic that was running when the process ended."""
    last = events[-1] if events else {}
    if last.get("event") != "tactic":
        raise TunerRunError(f"a process exited with code {code}, full log: {log}\n{processes.end(log, LINES_OF_LOG)}")
    made = {case: dict(reasons) for case, reasons in known.items()}
    made.setdefault(last["case"], {})[last["tactic"]] = f"it ended its process with code {code}"
    return made
