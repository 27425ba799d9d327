"""The tactics among which FlashInfer's tuner chooses for a call: list them, and have the call use one of them.

A call asks the tuner once or several times (`cutlass_fused_moe` asks for each of its two products). What is known of a
question comes from FlashInfer's public hooks: `choose_one` asks, `get_valid_tactics` lists, `autotune` tunes and loads.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, errors
from pytest_flashinfer_perf.engine import autotune
from pytest_flashinfer_perf.engine.autotune import Choice
from pytest_flashinfer_perf.extensions.tuner import buckets
from pytest_flashinfer_perf.machine import patches
from pytest_flashinfer_perf.machine.patches import Function


class TacticError(FlashinferPerfError):
    """A call does not offer the tactic that it was to use."""


@dataclass(frozen=True)
class Tactic:
    """An answer to each question of a call, by the name of the operation that asks."""

    answers: tuple[tuple[str, Choice], ...]

    @property
    def name(self) -> str:
        """Runner and tactic, with the operation in front where a call asks more than once."""
        if len(self.answers) == 1:
            return self.answers[0][1].sentence
        return "; ".join(f"{op.rpartition('::')[2]}: {choice.sentence}" for op, choice in self.answers)


@dataclass(frozen=True)
class Chosen:
    """What the tuner answers to a call; without an entry for each question, which covers the call, by default."""

    tactic: Tactic
    is_covered: bool


@dataclass(frozen=True)
class TunerQuestion:
    """What a call asks the tuner: an operation, the answer without tuning, and the answers that runners list.

    `broken` has a sentence for each runner that fails to list.
    """

    op: str
    default: Choice
    listed: tuple[Choice, ...]
    broken: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The listed ones and the default, which a runner need not list."""
        return tuple(dict.fromkeys((self.default, *self.listed)))


def questions(call: Callable[[], object]) -> tuple[TunerQuestion, ...]:
    """What the call asks the tuner when nothing is tuned. An operation that asks again is listed once."""
    buckets.tuner().clear_cache()
    questions_by_op: dict[str, TunerQuestion] = {}

    def on_question(op: str, answer: Choice, runners: Any, inputs: Any) -> None:
        listed, broken = _listed(runners, inputs)
        questions_by_op.setdefault(op, TunerQuestion(op, answer, listed, broken))

    _watch_questions(call, on_question)
    return tuple(questions_by_op.values())


def _watch_questions(call: Callable[[], object], on_question: Callable[..., None]) -> None:
    """Report each question of the call to the tuner, with its answer.

    The call itself gets the default, as an answer may fail. A default that raises is one tactic of the race, if its
    answer was reported by then.
    """
    ops = []

    def wrapped(ask: Function) -> Function:
        def choose_one(custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **kwargs: Any) -> tuple[Any, Any]:
            runner, tactic = ask(custom_op, runners, tuning_config, inputs, **kwargs)
            with patches.tuner_wrapped("choose_one", lambda _: ask):  # a runner may ask for its parts to list: no call
                on_question(custom_op, Choice(_name(runner, runners), tactic), runners, inputs)
            ops.append(custom_op)
            return runners[0], -1

        return choose_one

    with patches.tuner_wrapped("choose_one", wrapped):
        try:
            call()
        except Exception:
            if not ops:
                raise


def _name(runner: Any, runners: Sequence[Any]) -> str:
    """The runner's class, with a number for the second of its class that a call offers."""
    before = itertools.takewhile(lambda one: one is not runner, runners)
    nth = 1 + sum(type(one) is type(runner) for one in before)
    return type(runner).__name__ + f"#{nth}" * (nth > 1)


def default(questions: Sequence[TunerQuestion]) -> Tactic:
    return Tactic(tuple((question.op, question.default) for question in questions))


def _listed(runners: Sequence[Any], inputs: Sequence[Any]) -> tuple[tuple[Choice, ...], tuple[str, ...]]:
    """The tactics that runners list for inputs of this size; for a runner that raises, a sentence."""
    choices: dict[Choice, None] = {}
    broken = []
    for runner in runners:
        name = _name(runner, runners)
        try:
            choices |= {Choice(name, tactic): None for tactic in runner.get_valid_tactics(inputs, _profile(inputs))}
        except Exception as error:  # noqa: BLE001 - whatever it raises
            broken.append(f"{name}: {errors.in_one_line(error)}")
    return tuple(choices), tuple(broken)


def _profile(inputs: Sequence[Any]) -> Any:
    library = importlib.import_module("flashinfer.autotuner")
    shapes = [[library.StaticDim(size) for size in shape] for shape in buckets.shapes(inputs)]
    return library.OptimizationProfile(shapes, [None] * len(shapes))


def using(tactic: Tactic) -> AbstractContextManager[None]:
    """Calls use this tactic, as they would if the tuner had chosen it. Raises TacticError if they do not offer it."""
    wanted = dict(tactic.answers)

    def choose_one(custom_op: str, runners: Any, *_others: Any, **_kwargs: Any) -> tuple[Any, Any]:
        choice = wanted.get(custom_op)
        offered = (runner for runner in runners if choice and _name(runner, runners) == choice.runner)
        runner = next(offered, None)
        if choice is None or runner is None:
            raise TacticError(f"{custom_op} does not offer {choice.sentence if choice else 'a tactic that was listed'}")
        return runner, choice.tactic

    return patches.tuner_wrapped("choose_one", lambda _: choose_one)


def chosen(call: Callable[[], object], *, cache: str | None = None) -> Chosen:
    """What the tuner answers to the call by itself: untuned, or with a cache file loaded.

    The tuner keeps what it loaded, so that calls that follow are replays.
    """
    autotune.prepare(lambda: None, tune=False, cache=cache)
    return _answers(call)


def tuned(call: Callable[[], object]) -> Chosen:
    """What the tuner answers after it has tuned the call's own sizes afresh."""
    buckets.tuner().clear_cache()
    with importlib.import_module("flashinfer.autotuner").autotune(True), _in_own_bucket():
        _answers(call)
    return _answers(call)


def _answers(call: Callable[[], object]) -> Chosen:
    choices: dict[str, Choice] = {}
    hits: list[bool] = []

    def on_question(op: str, answer: Choice, *_rest: Any) -> None:
        choices[op] = answer

    def wrapped(search: Function) -> Function:
        def search_cache(*args: Any, **kwargs: Any) -> Any:
            hit = search(*args, **kwargs)
            hits.append(bool(hit[0]))
            return hit

        return search_cache

    with patches.tuner_wrapped("search_cache", wrapped):
        _watch_questions(call, on_question)
    return Chosen(Tactic(tuple(choices.items())), bool(hits) and all(hits))


def product(base: Tactic, among: dict[str, Sequence[Choice]]) -> list[Tactic]:
    """Every combination of these answers, with the base's answers to other questions."""
    combined = (dict(base.answers) | dict(zip(among, them, strict=True)) for them in itertools.product(*among.values()))
    return [Tactic(tuple(answers.items())) for answers in combined]


def _in_own_bucket() -> AbstractContextManager[None]:
    """The tuner is offered tactics in the call's bucket alone: other ones take no time and get no entry."""

    def wrapped(ask: Function) -> Function:
        def choose_one(custom_op: str, runners: Any, tuning_config: Any, inputs: Any, **kwargs: Any) -> Any:
            specs = buckets.specs(tuning_config, inputs)
            here = buckets.of(specs, buckets.shapes(inputs))

            def limited(lists: Function) -> Function:
                def get_valid_tactics(runner: Any, inputs: Any, profile: Any) -> list[Any]:
                    """The last profile has the call's own size, and is kept as the bucket this one is rounded to."""
                    is_here = buckets.of(specs, profile.get_opt_shapes()) == here
                    return lists(runner, inputs, profile) if is_here else []

                return get_valid_tactics

            with ExitStack() as stack:  # of the classes: the tuner takes a runner's own attributes for its identity
                for kind in {type(runner) for runner in runners}:
                    stack.enter_context(patches.wrapped_of(kind, "get_valid_tactics", limited))
                return ask(custom_op, runners, tuning_config, inputs, **kwargs)

        return choose_one

    return patches.tuner_wrapped("choose_one", wrapped)
