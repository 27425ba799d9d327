"""Eight tactics of known cost: a stopwatch that simulates them, and the case of a report that raced them by it."""

import functools
import math
import random

from pytest_flashinfer_perf.extensions.tuner.race import Race, UnfitError
from pytest_flashinfer_perf.extensions.tuner.results import FORMAT, CaseRace, QuestionResult, Report
from pytest_flashinfer_perf.extensions.tuner.search import entries
from pytest_flashinfer_perf.gate.thresholds import Thresholds

BEST, ALSO_BEST, SECOND, SLOW, SLOWEST, ONLY_UNIFORM, WRONG, RAISES = map(str, range(8))
COST_US = {BEST: 100.0, ALSO_BEST: 100.0, SECOND: 106.0, SLOW: 125.0, SLOWEST: 300.0, ONLY_UNIFORM: 140.0}
ALL = (*COST_US, WRONG, RAISES)
SEEDS = 20
MOST = 0.95 * SEEDS
BETWEEN_ROUNDS, WITHIN, OUTLIER = 0.03, 0.008, 0.02
LIMITS = Thresholds((("gemm/mine*", {"max_regret": 0.05}),))


def rounds(rng, costs=COST_US, made=None):
    """A round's level is shared by its tactics; each has noise of its own, and now and then a call is disturbed."""
    while True:
        level = rng.gauss(0, BETWEEN_ROUNDS)

        def timed(name, level=level):
            if made is not None:
                made.append(name)
            if name == WRONG:
                raise UnfitError("wrong", "output 0: 12 of 16 differ")
            if name == RAISES:
                raise UnfitError("fails", "RuntimeError: no such kernel")
            disturbed = 0.1 if rng.random() < OUTLIER else 0.0
            return costs[name] * 1e-6 * math.exp(level + rng.gauss(0, WITHIN) + disturbed)

        yield timed


def case(seed, tunes, costs=COST_US, *, default=SLOW, name="mine/m4-auto", **more):
    """A case of the file, with the stopwatch simulated."""
    race = Race({default, *tunes}, rounds(random.Random(seed), costs))
    race.run(ALL, lambda: True)
    made = {
        "case": name,
        "family": "gemm",
        "instrument": "wall",
        "cuda_graph": False,
        "device": "none",
        "questions": (QuestionResult("op", ("Runner",)),),
        "rounds": race.round,
        "tactics": tuple(entries(race)),
        "best": race.field.best,
        "ways": {"default": default, **{f"tune {n}": pick for n, pick in enumerate(tunes, start=1)}},
    }
    return CaseRace(**{**made, **more})


@functools.cache
def planted():
    """Tuners that take one of the two best, the second best, and the slowest."""
    return [case(seed, [BEST, SECOND, SLOWEST]) for seed in range(SEEDS)]


def report_of(*cases, found=(), left_out=()):
    return Report(FORMAT, {"flashinfer": "0.7.2"}, cases, tuple(left_out), tuple(found))
