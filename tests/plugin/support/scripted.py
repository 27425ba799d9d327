"""An instrument of the tests: each call is made, and takes what a script says instead of what a clock reads.

It is the one of every test that has not the marker `more`, and a plugin of pytest (PYTEST_PLUGINS) for the sessions
that tests start, workers and children of theirs included. So a run has the same times on each machine.
PYTEST_DONT_REWRITE: sessions in this process would warn that it is imported already.
"""

import itertools
import sys

import pytest

INSTRUMENTS = "pytest_flashinfer_perf.engine.instruments"
SECONDS = (1.0e-3, 1.001e-3, 0.999e-3)
READING = 1e-6


class Scripted:
    """Takes the place of the host's clock: calls last these seconds in turns, and each reading of the clock 1 us.

    A call that is to be long before it is timed, in the trial, is long by `reading`.
    """

    name = "wall"

    def __init__(self, *seconds, reading=READING):
        self._turns, self._now, self._reading = itertools.cycle(seconds or SECONDS), 0.0, reading

    def missing(self, _device):
        return None

    def now(self):
        self._now += self._reading
        return self._now

    def sample(self, work, count, warmup):
        for _ in range(warmup):
            work()
        return [self._timed(work) for _ in range(count)]

    def _timed(self, work):
        work.chill()
        seconds = self.seconds_of(work())
        self._now += seconds
        return sys.modules[INSTRUMENTS].CallTime(seconds)

    def seconds_of(self, _answer):
        return next(self._turns)


def install(instrument=None):
    """Use this one from here on, or the default one if the real clock is in use; a conftest may call it."""
    from pytest_flashinfer_perf.engine import instruments

    if instrument or isinstance(instruments.INSTRUMENTS["wall"], instruments.Wall):
        instruments.INSTRUMENTS["wall"] = instrument or Scripted()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if "torch" in sys.modules or "perf" in item.fixturenames:
        install()
