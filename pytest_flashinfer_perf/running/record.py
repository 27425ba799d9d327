"""Record a measurement as a row of pytest-benchmark, through its public API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_flashinfer_perf.runs.row import Row


class ReplayClock:
    """A pytest-benchmark timer that replays durations measured elsewhere.

    Two readings per round, 0.0 and then d: their difference is d to the last bit, where a running sum would round it.
    """

    def __init__(self) -> None:
        self.__name__ = "not loaded"  # goes to the JSON as options.timer
        self._readings: Iterator[float] = iter(())

    def load(self, instrument: str, durations: Iterable[float]) -> None:
        self.__name__ = instrument
        self._readings = iter([reading for d in durations for reading in (0.0, float(d))])

    def __call__(self) -> float:
        reading = next(self._readings, None)
        if reading is None:
            raise RuntimeError(
                "a test with the perf fixture records through perf(...) or perf.time(...), not benchmark(...)"
            )
        return reading


def write(benchmark: Any, clock: ReplayClock, row: Row) -> None:
    """One record of exactly the row's samples."""
    if benchmark.disabled:
        raise RuntimeError("pytest-benchmark is off and would lose this row: unset PYTEST_XDIST_WORKER, or say -n 1")
    benchmark.extra_info.update(checked(row))
    clock.load(row.provenance.instrument, row.stats.data)
    benchmark.cprofile = False  # it would be of the replay, which nobody asks about
    benchmark.pedantic(lambda: None, rounds=row.stats.rounds, iterations=1)


def ship(benchmark: Any, row: Row) -> None:
    """Where pytest-benchmark is off, in a worker: the row stays with the fixture until the test's report takes it."""
    benchmark.extra_info.update(checked(row))
    leave_out(benchmark)


def leave_out(benchmark: Any) -> None:
    """The fixture counts as used, and no row is written: of a skipped or wrong case there is nothing to record."""
    benchmark.disabled = True
    benchmark.pedantic(lambda: None)


def checked(row: Row) -> dict[str, Any]:
    """Fail here, in the test that set it: at the session's end one bad value would empty the whole JSON file."""
    written = row.extra_info()
    try:
        json.dumps(written, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a row holds JSON values only: {error}") from error
    return written
