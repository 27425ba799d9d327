"""The pytest plugin of a process that tunes or races (`-p`): cases are selected as usual, and looked at one by one.

What it finds is written line by line, so that a tactic that kills the process costs no more than itself: whoever
started the process starts it again, and says which tactic to leave out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.files import append_whole, as_json, read_json
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.measurement import one_case
from pytest_flashinfer_perf.session import time_limit
from pytest_flashinfer_perf.session.stash import DEVICE, SETTINGS, case_of
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.tuner import contest, sets, tactics
from pytest_flashinfer_perf.tuner.contest import Contest, DeviceLostError, Searched, Ways
from pytest_flashinfer_perf.tuner.race import Race
from pytest_flashinfer_perf.tuner.tactics import Question, Tactic

PLUGIN = __name__
TUNE = "tune "  # and a number: the way of a fresh process
LOST = 86  # the exit code of a process whose GPU a tactic made unusable


@dataclass(frozen=True)
class Job:
    """What to do with each case: tune it into `cache`, or race its tactics for `budget` seconds.

    `picks` are what earlier processes chose, by case and way; `files` their cache files by way; `crashed` the reasons
    by case and tactic of those that ended a process; `done` are cases that are finished.
    """

    output: str
    tune: bool = False
    budget: float = 0.0
    cache: str | None = None
    write: str | None = None
    picks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    crashed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return as_json(asdict(self))

    def say(self, event: str, **more: Any) -> None:
        append_whole(Path(self.output), f"{as_json({'event': event, **more})}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tuner-job", metavar="FILE", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    job = Job(**read_json(config.getoption("tuner_job")))
    config.pluginmanager.register(TunerLoop(config, job), "flashinfer-perf-tuner-loop")


class TunerLoop:
    """Replaces pytest's loop over tests; the device is found before, by the hooks of the plugin itself."""

    def __init__(self, config: pytest.Config, job: Job) -> None:
        self._config = config
        self._job = job

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:  # pytest itself reports collection errors
            return None
        cases = list({_untuned(case): case for item in session.items if (case := case_of(item)) is not None}.values())
        if not cases:
            raise pytest.UsageError("no tuner to look at: these arguments select no test with a case")
        self._job.say("begins", versions=provenance.versions())
        for case in cases:
            if case.identity.case not in self._job.done:
                self._one(case)
        self._job.say("end")
        return True

    def _one(self, case: Case) -> None:
        """A case ends with a line, whatever happens to it."""
        job, name, start = self._job, case.identity.case, time.monotonic()
        job.say("starts", case=name)
        try:
            found = self._looked_at(case)
        except DeviceLostError:
            os._exit(LOST)
        except Exception as error:  # noqa: BLE001 - the other cases have tactics too
            found = {"failed": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
        finally:
            self._config.stash[DEVICE].give_back_memory()
        job.say("case", case=name, seconds=round(time.monotonic() - start, 2), **found)

    def _looked_at(self, case: Case) -> dict[str, Any]:
        settings, device = self._config.stash[SETTINGS], self._config.stash[DEVICE]
        reason = one_case.obstacle(case, device, settings.max_memory)
        if reason:
            return {"skipped": reason}
        time_limit.watch()
        measuring = case.options.applied_to(settings.measuring, device)
        prepared = one_case.prepared(case, measuring, settings.checking, device, tuned=False)
        if self._job.tune:
            picked = tactics.chosen(prepared.target, tune=True, cache=self._job.cache)
            return {"picked": picked.as_json}
        asked = tactics.questions(prepared.target)
        if not any(question.listed for question in asked):
            return {"skipped": "it asks FlashInfer's tuner nothing"}
        held = Contest(prepared, contest.bench_of(prepared, measuring, device), self._starts(case))
        return _raced(case, held, asked, self._job)

    def _starts(self, case: Case) -> Any:
        return lambda tactic: self._job.say("tactic", case=case.identity.case, tactic=tactic)


def _untuned(case: Case) -> tuple[Any, ...]:
    """What a case and the same one with --autotune have in common: here both are asked untuned."""
    params = {name: value for name, value in case.params.as_json().items() if name != "autotune"}
    return case.routine.name, case.backend_name, repr(params), case.seed


def _raced(case: Case, held: Contest, asked: tuple[Question, ...], job: Job) -> dict[str, Any]:
    name = case.identity.case
    held.crashed = job.crashed.get(name, {})
    ways = _ways(held, asked, job, name)
    found = contest.search(held, asked, ways, job.budget)
    best = held.tactics[found.field.best[0]] if found.field.times else None
    job.say("replays", case=name)
    document = described(case, held, asked, ways, found)
    if job.write and best is not None:
        tactics.write(held.target, best, job.write)
        document["written"] = tactics.chosen(held.target, cache=job.write).name == best.name
    return document


def _ways(held: Contest, asked: tuple[Question, ...], job: Job, name: str) -> Ways:
    """The default, what each fresh tune took, and what the cache file says."""
    made = {"default": tactics.default(asked)}
    made |= {way: Tactic.from_json(picked) for way, picked in job.picks.get(name, {}).items()}
    files = {way: job.files[way] for way in made if way in job.files}
    if job.cache:
        made["cache"], files["cache"] = tactics.chosen(held.target, cache=job.cache), job.cache
    return Ways(made, files)


def described(case: Case, held: Contest, asked: tuple[Question, ...], ways: Ways, found: Searched) -> dict[str, Any]:
    """The case of the report's file."""
    params = {key: str(value) for key, value in case.params.as_dict().items()}
    return {
        "routine": case.routine.name,
        "family": case.routine.family,
        "backend": case.backend_name,
        "shape": case.shape.id,
        "params": params,
        "instrument": held.bench.instrument.name,
        "cuda_graph": held.bench.cuda_graph,
        "device": held.device.name,
        "questions": [_question(one) for one in asked],
        "search": found.sentence,
        "rounds": found.race.round,
        "tactics": entries(found.race, held.tactics),
        "best": list(found.field.best) if found.field.times else [],
        "ways": {way: tactic.name for way, tactic in ways.tactics.items()},
        "untuned": [way for way, tactic in ways.tactics.items() if way != "default" and tactic.is_default],
        "flips": sets.flips(found.field, [ways.tactics[way].name for way in ways.tactics if way.startswith(TUNE)]),
        "replayed": contest.fidelity(held, ways),
    }


def _question(question: Question) -> dict[str, Any]:
    runners = sorted({choice.runner for choice in question.choices})
    return {"op": question.op, "runners": runners, "broken": question.broken, "rounded": question.rounded}


def entries(race: Race, offered: Mapping[str, Tactic]) -> list[dict[str, Any]]:
    """Every tactic that had a turn, or should have had one."""
    field = race.field
    best = set(field.best) if field.times else set()
    made = []
    for name, lane in race.lanes.items():
        regret = field.regret(name) if lane.times else None
        made.append(
            {
                "tactic": name,
                "answers": offered[name].as_json,
                "state": "best" if name in best else lane.state or "slower",
                "why": lane.why,
                "seconds": [lane.times[n] for n in sorted(lane.times)],
                "regret": None if regret is None else [regret.low, regret.seen, regret.high],
            }
        )
    return made
