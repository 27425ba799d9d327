"""Find the best of the tactics that could be chosen for a case, and what each way to choose costs.

A way is how a tactic comes to be chosen: FlashInfer's default, a fresh tune in a process of its own, or a cache file.
What a way chooses stays in the race to its end, so that its regret is known.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import Device, Settings, fields, file_io, time_limit
from pytest_flashinfer_perf.engine.autotune import Choice
from pytest_flashinfer_perf.engine.repeated import RepeatedCase
from pytest_flashinfer_perf.extensions.tuner import tactics
from pytest_flashinfer_perf.extensions.tuner.contest import Contest
from pytest_flashinfer_perf.extensions.tuner.race import Lane, Race
from pytest_flashinfer_perf.extensions.tuner.results import DEFAULT, CaseRace, QuestionResult, TacticResult
from pytest_flashinfer_perf.extensions.tuner.tactics import Chosen, Tactic, TunerQuestion
from pytest_flashinfer_perf.spec.case import Case

MOST_OF_ONE = 8  # of the best answers to one question that are combined with those to another
NOT_LISTED = "no runner lists it for this size, so that another one may run"
NOT_BESIDE = "it was combined into what was raced later, and never ran in two rounds beside the best"


@dataclass(frozen=True)
class TuneJob:
    """What to do with each case: tune it, or race what could be chosen, `budget` seconds long.

    A race judges `cache`. `picks` are what earlier processes chose, by case and way;
    `crashed` the reasons by case and tactic of those that ended a process; `done` are cases that are finished. What
    happens is written to `output`, a line for each event.
    """

    output: str = ""
    tune: bool = False
    budget: float = 0.0
    cache: str | None = None
    picks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    crashed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    def say(self, event: str, **more: Any) -> None:
        """Report an event to the parent; the next part has the whole time limit of a case."""
        time_limit.restart()
        file_io.append_whole(Path(self.output), f"{file_io.as_json({'event': event, **more})}\n")


def race_case(test: str, case: Case, settings: Settings, device: Device, job: TuneJob) -> CaseRace | None:
    """Race every tactic that could be chosen; None where there is nothing to choose."""
    name = case.identity.case
    call = RepeatedCase(case, settings.measuring, settings.checking, device)
    questions = tactics.questions(call.call)
    if not any(question.listed or question.broken for question in questions):
        return None
    chosen = {way: fields.read(Chosen, picked, way) for way, picked in job.picks.get(name, {}).items()}
    if job.cache:
        chosen["cache"] = tactics.chosen(call.call, cache=job.cache)
    ways = {DEFAULT: tactics.default(questions), **{way: one.tactic for way, one in chosen.items()}}
    held = Contest(call, lambda tactic: job.say("tactic", case=name, tactic=tactic), job.crashed.get(name, {}))
    race = _searched(held, questions, list(ways.values()), job.budget)
    _name_not_listed(race, questions, ways)
    return CaseRace(
        case=name,
        test=test,
        family=case.routine.family,
        instrument=call.instrument,
        cuda_graph=call.cuda_graph,
        device=device.name,
        rounds=race.round,
        tactics=tuple(entries(race)),
        best=race.field.best if race.field.times else (),
        ways={way: tactic.name for way, tactic in ways.items()},
        untuned=tuple(way for way, one in chosen.items() if not one.is_covered),
        questions=tuple(
            QuestionResult(one.op, tuple(sorted({choice.runner for choice in one.choices})), one.broken)
            for one in questions
        ),
    )


def _name_not_listed(race: Race, questions: Sequence[TunerQuestion], ways: Mapping[str, Tactic]) -> None:
    offered = {(question.op, choice) for question in questions for choice in question.choices}
    for tactic in ways.values():
        lane = race.lanes[tactic.name]
        lane.why = lane.why or ("" if offered.issuperset(tactic.answers) else NOT_LISTED)


def _until(end: float) -> Callable[[], float]:
    return lambda: end - time.monotonic()


def _searched(held: Contest, questions: Sequence[TunerQuestion], kept: Sequence[Tactic], budget: float) -> Race:
    """Race all answers to one question. To several: those to each with the others' defaults, then the best combined."""
    start, base = time.monotonic(), tactics.default(questions)
    race = Race(held.enter(kept), held.rounds(), held.tick_s)
    each = budget / (len(questions) + (len(questions) > 1))
    best: dict[str, Sequence[Choice]] = {}
    for nth, question in enumerate(questions, start=1):
        offered = tactics.product(base, {question.op: question.choices})
        race.run(held.enter(offered), _until(start + each * nth))
        best[question.op] = _best_of(race, question, offered)
    if len(questions) > 1:
        race.run(held.enter(tactics.product(base, best)), _until(start + budget))
    return race


def _best_of(race: Race, question: TunerQuestion, offered: Sequence[Tactic]) -> list[Choice]:
    """The answers that are left, the fastest first."""
    left = [one for one in offered if race.lanes[one.name].times and not race.lanes[one.name].state]
    left.sort(key=lambda one: statistics.median(race.lanes[one.name].times.values()))
    return [dict(one.answers)[question.op] for one in left[:MOST_OF_ONE]] or [question.default]


def entries(race: Race) -> list[TacticResult]:
    """Everything that had a turn, or should have had one."""
    best = set(race.field.best) if race.field.times else set()

    def entry(lane: Lane) -> TacticResult:
        regret = race.field.regret(lane.name) if lane.times else None
        return TacticResult(
            lane.name,
            "best" if lane.name in best else lane.state or "slower",
            lane.why or (NOT_BESIDE if lane.times and regret is None else ""),
            tuple(lane.times[nth] for nth in sorted(lane.times)),
            regret,
        )

    return list(map(entry, race.lanes.values()))
