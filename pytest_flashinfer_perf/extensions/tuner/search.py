"""Find the best of what could be chosen for a case, and what each way to choose costs.

A way is how something comes to be chosen: FlashInfer's default, a fresh tune in a process of its own, a cache file, or
the heuristic behind `auto`. What a way chooses stays in the race to its end, so that its regret is known.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import SETTINGS, CaseRun, Device, Settings, fields, file_io, formatting, stash
from pytest_flashinfer_perf.engine.autotune import Choice
from pytest_flashinfer_perf.engine.repeated import RepeatedCase
from pytest_flashinfer_perf.extensions.tuner import heuristics, report, sets, tactics
from pytest_flashinfer_perf.extensions.tuner.contest import Contest, Entrant
from pytest_flashinfer_perf.extensions.tuner.found import DEFAULT, TUNE, CaseFound, QuestionFound, Replayed, TacticFound
from pytest_flashinfer_perf.extensions.tuner.race import Lane, Race
from pytest_flashinfer_perf.extensions.tuner.tactics import Chosen, Tactic, TunerQuestion
from pytest_flashinfer_perf.session import time_limit
from pytest_flashinfer_perf.spec.case import Case

MOST_OF_ONE = 8  # of the best answers to one question that are combined with those to another
NOT_LISTED = "no runner lists it for this size, so that another one may run"
NOT_BESIDE = "it was combined into what was raced later, and never ran in two rounds beside the best"
NOTHING_TO_CHOOSE = "it asks FlashInfer's tuner nothing, and no heuristic chooses its kernel"


@dataclass(frozen=True)
class TuneJob:
    """What to do with each case: tune it into `cache` with `tune`, or race what could be chosen, `budget` seconds long.

    A race judges `cache`, and adds the best to `write`. `picks` are what earlier processes chose, by case and way;
    `files` their cache files by way; `crashed` the reasons by case and tactic of those that ended a process; `done` are
    cases that are finished. What happens is written to `output`, a line for each event.
    """

    output: str = ""
    tune: str | None = None
    budget: float = 0.0
    cache: str | None = None
    write: str | None = None
    picks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    crashed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    done: tuple[str, ...] = ()

    def say(self, event: str, **more: Any) -> None:
        """Another part begins, which has the whole time of a case."""
        time_limit.again()
        if self.output:
            file_io.append_whole(Path(self.output), f"{file_io.as_json({'event': event, **more})}\n")


def look_at(case: Case, settings: Settings, device: Device, job: TuneJob) -> CaseFound | None:
    """Race all that could be chosen; None where there is nothing to choose."""
    start, name = time.monotonic(), case.identity.case
    call = RepeatedCase(case, settings.measuring, settings.checking, device)
    held = Contest(call, lambda tactic: job.say("tactic", case=name, tactic=tactic), job.crashed.get(name, {}))
    questions = tactics.questions(call.call)
    if any(question.listed or question.broken for question in questions):
        found = _tactics(case, held, questions, job)
    elif len(rivals := heuristics.rivals(case, call, settings)) > 1:
        found = _heuristic(case, held, rivals, job.budget)
    else:
        return None
    return replace(found, took_s=round(time.monotonic() - start, 2))


def with_tactics(run: CaseRun, case: Case, config: pytest.Config, budget: float) -> CaseRun:
    """The run of a case, whose row has all that could be chosen."""
    found, row = look_at(case, config.stash[SETTINGS], config.stash[stash.DEVICE], TuneJob(budget=budget)), run.row
    if found is None or row is None:
        return run
    execution = replace(row.execution, notes=(*row.execution.notes, report.summary(found)))
    facts = {**row.facts, "tactics": list(map(asdict, found.tactics))}
    return replace(run, row=replace(row, execution=execution, facts=facts))


def _heuristic(case: Case, held: Contest, rivals: Sequence[Entrant], budget: float) -> CaseFound:
    """What a heuristic chose, which is the first of them, against the others."""
    names = held.enter(rivals)
    race = Race(names[:1], held.rounds(), held.tick_s)
    race.run(names, _until(time.monotonic() + budget))
    return _found(
        case, held, race, f"{names[0]} against {formatting.counted(len(names) - 1, 'other')}", {DEFAULT: names[0]}
    )


def _tactics(case: Case, held: Contest, questions: Sequence[TunerQuestion], job: TuneJob) -> CaseFound:
    """Every tactic of the tuner, then what each way replays."""
    call = held.call.call
    picks = job.picks.get(case.identity.case, {})
    chosen = {way: fields.read(Chosen, picked, way) for way, picked in picks.items()}
    files = {way: job.files[way] for way in chosen if way in job.files}
    if job.cache:
        chosen["cache"], files["cache"] = tactics.chosen(call, cache=job.cache), job.cache
    ways = {DEFAULT: tactics.default(questions), **{way: one.tactic for way, one in chosen.items()}}
    race, sentence = _searched(held, questions, list(ways.values()), job.budget)
    offered = {(question.op, choice) for question in questions for choice in question.choices}
    for tactic in ways.values():
        lane = race.lanes[tactic.name]
        lane.why = lane.why or ("" if offered.issuperset(tactic.answers) else NOT_LISTED)
    job.say("replays", case=case.identity.case)
    more = {
        "untuned": tuple(way for way, one in chosen.items() if not one.is_covered),
        "questions": tuple(
            QuestionFound(one.op, tuple(sorted({choice.runner for choice in one.choices})), one.broken, one.rounded)
            for one in questions
        ),
        "replayed": {
            way: _replayed(held, ways[way], files.get(way))
            for way in (DEFAULT, *files)
            if race.lanes[ways[way].name].laps
        },
        "written": _written(race, call, questions, ways, job.write),
    }
    return _found(case, held, race, sentence, {way: tactic.name for way, tactic in ways.items()}, **more)


def _until(end: float) -> Callable[[], float]:
    return lambda: end - time.monotonic()


def _searched(
    held: Contest, questions: Sequence[TunerQuestion], kept: Sequence[Tactic], budget: float
) -> tuple[Race, str]:
    """Race all answers to one question. To several: those to each with the others' defaults, then the best combined."""

    def entrants(of: Sequence[Tactic]) -> list[Entrant]:
        return [Entrant(tactic.name, held.call, partial(tactics.using, tactic)) for tactic in of]

    start, base = time.monotonic(), tactics.default(questions)
    race = Race(held.enter(entrants(kept)), held.rounds(), held.tick_s)
    each = budget / (len(questions) + (len(questions) > 1))
    best: dict[str, Sequence[Choice]] = {}
    for nth, question in enumerate(questions, start=1):
        offered = tactics.product(base, {question.op: question.choices})
        race.run(held.enter(entrants(offered)), _until(start + each * nth))
        best[question.op] = _best_of(race, question, offered)
    if len(questions) > 1:
        race.run(held.enter(entrants(tactics.product(base, best))), _until(start + budget))
    return race, _sentence(questions, best)


def _best_of(race: Race, question: TunerQuestion, offered: Sequence[Tactic]) -> list[Choice]:
    """The answers that are left, the fastest first."""
    left = [one for one in offered if race.lanes[one.name].laps and not race.lanes[one.name].state]
    left.sort(key=lambda one: statistics.median(race.lanes[one.name].times.values()))
    return [dict(one.answers)[question.op] for one in left[:MOST_OF_ONE]] or [question.default]


def _sentence(questions: Sequence[TunerQuestion], best: Mapping[str, Sequence[Choice]]) -> str:
    if len(questions) == 1:
        return f"all {len(questions[0].choices)} tactics"
    each = ", then ".join(f"{len(one.choices)} of {one.op} with the others' defaults" for one in questions)
    combined = " x ".join(str(len(choices)) for choices in best.values())
    return f"{each}, then the best of each combined ({combined}): each is taken to cost the same beside any other"


def _replayed(held: Contest, tactic: Tactic, cache: str | None) -> Replayed:
    """Whether FlashInfer chooses that tactic again, by its answer, by its kernels, and in a graph.

    Kernels count, not their order: those of a programmatic launch overlap, and CUPTI knows only when each began.
    """
    case = held.call
    answer = tactics.chosen(case.call, cache=cache).tactic
    gc.collect()  # of the graphs that the tuner left behind
    eager, captured = case.kernels(case.call), case.captured()
    graph = case.kernels(captured) if captured else None
    with tactics.using(tactic):
        timed = case.kernels(case.call) or ()
    differences = [None if seen is None else difference(seen, timed) for seen in (eager, graph)]
    in_eager, in_graph = (None if one is None else not one for one in differences)
    return Replayed(answer.name == tactic.name, in_eager, in_graph, next(filter(None, differences), ""))


def difference(seen: Sequence[str], timed: Sequence[str]) -> str:
    """What runs more often, or less, than in the call that was timed."""
    more, fewer = Counter(seen) - Counter(timed), Counter(timed) - Counter(seen)
    return ", ".join(f"{sign} {name}" for sign, names in (("+", more), ("-", fewer)) for name in names.elements())


def _written(
    race: Race,
    call: Callable[[], object],
    questions: Sequence[TunerQuestion],
    ways: Mapping[str, Tactic],
    cache: str | None,
) -> bool | None:
    """Whether a cache file with the best tactic covers the call and leads to a best one; None if none is asked for."""
    if cache is None or not race.field.times:
        return None
    name = race.field.fastest
    offered = tactics.product(tactics.default(questions), {question.op: question.choices for question in questions})
    tactics.write(call, next(one for one in (*ways.values(), *offered) if one.name == name), cache)
    taken = tactics.chosen(call, cache=cache)
    return taken.is_covered and taken.tactic.name in race.field.best


def _found(case: Case, held: Contest, race: Race, search: str, ways: Mapping[str, str], **more: Any) -> CaseFound:
    picks = [name for way, name in ways.items() if way.startswith(TUNE)]
    return CaseFound(
        case=case.identity.case,
        routine=case.routine.name,
        family=case.routine.family,
        backend=case.backend_name,
        params={key: str(value) for key, value in case.params.as_dict().items()},
        instrument=held.call.instrument,
        cuda_graph=held.call.cuda_graph,
        device=held.call.device.name,
        search=search,
        rounds=race.round,
        tactics=tuple(entries(race)),
        best=race.field.best if race.field.times else (),
        ways=ways,
        flips=sets.flips(race.field, picks),
        **more,
    )


def entries(race: Race) -> list[TacticFound]:
    """Everything that had a turn, or should have had one."""
    field, in_cycles = race.field, race.field_in_cycles
    best = set(field.best) if field.times else set()

    def entry(lane: Lane) -> TacticFound:
        regret = field.regret(lane.name) if lane.laps else None
        return TacticFound(
            lane.name,
            "best" if lane.name in best else lane.state or "slower",
            lane.why or (NOT_BESIDE if lane.laps and regret is None else ""),
            tuple(lane.times[nth] for nth in sorted(lane.laps)),
            regret,
            in_cycles.regret(lane.name) if lane.laps and in_cycles else None,
        )

    return list(map(entry, race.lanes.values()))
