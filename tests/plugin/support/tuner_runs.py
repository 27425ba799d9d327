"""Eight tactics of known cost, as a stopwatch that simulates them and as a runner of FlashInfer's interface."""

import math

from pytest_flashinfer_perf.tuner.race import Lap, UnfitError

BEST, ALSO_BEST, SECOND, SLOW, SLOWEST, ONLY_UNIFORM, WRONG, RAISES = map(str, range(8))
COST_US = {BEST: 100.0, ALSO_BEST: 100.0, SECOND: 106.0, SLOW: 125.0, SLOWEST: 300.0, ONLY_UNIFORM: 140.0}
UNIFORM_US = {**COST_US, ONLY_UNIFORM: 80.0}
ALL = (*COST_US, WRONG, RAISES)
BETWEEN_ROUNDS, WITHIN, OUTLIER = 0.03, 0.008, 0.02


def rounds(rng, costs=COST_US, made=None, ghz=None):
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
            seconds = costs[name] * 1e-6 * math.exp(level + rng.gauss(0, WITHIN) + disturbed)
            return Lap(seconds, ghz and ghz(name))

        yield timed
