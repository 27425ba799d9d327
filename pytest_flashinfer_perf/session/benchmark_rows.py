"""Make measured samples rows of pytest-benchmark, which writes the files and prints the table.

In the process that measured, its public API is enough: `ReplayClock` is a timer that replays the samples. Under xdist
pytest-benchmark is off and has no way to add a row of a worker, so its fixture is made for a stand-in of the test. The
constructor of that fixture and the class of its statistics are not documented; this module is all that knows them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from concurrent import futures
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import safe_dumps

from pytest_flashinfer_perf.rows.row import Row, is_own
from pytest_flashinfer_perf.session.reports import Options


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
                "a test with the perf fixture measures through perf(...) or perf.time(...), not benchmark(...)"
            )
        return reading


def write(benchmark: Any, clock: ReplayClock, row: Row) -> None:
    """Add the row, with exactly its samples."""
    if benchmark.disabled:
        raise RuntimeError("pytest-benchmark is off and would lose this row: unset PYTEST_XDIST_WORKER, or say -n 1")
    benchmark.extra_info.update(checked(row))
    clock.load(row.provenance.instrument, row.stats.data)
    benchmark.cprofile = False  # it would be of the replay, which nobody asks about
    benchmark.pedantic(lambda: None, rounds=row.stats.rounds, iterations=1)


def attach_row(benchmark: Any, row: Row) -> None:
    """Keep the row with the fixture until the test's report takes it: in a worker pytest-benchmark is off."""
    benchmark.extra_info.update(checked(row))
    drop_row(benchmark)


def drop_row(benchmark: Any) -> None:
    """Mark the fixture as used without a row, as for a skipped or wrong case."""
    benchmark.disabled = True
    benchmark.pedantic(lambda: None)


def checked(row: Row) -> dict[str, Any]:
    """Fail in the test that set a value that JSON lacks: at the session's end it would empty the whole file."""
    written = row.extra_info()
    try:
        json.dumps(written, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a row holds JSON values only: {error}") from error
    return written


# The rows of other processes: a worker's report carries what `finished` gives, and the main process adds it.


def finished(item: pytest.Item, row: Row, benchmark: Any) -> tuple[Row, Options]:
    """Complete the row with what the test itself has added to its fixture, as pytest-benchmark's JSON will have it."""
    marker = item.get_closest_marker("benchmark")
    own = {name: value for name, value in benchmark.extra_info.items() if not is_own(name)}
    benchmark.extra_info.update(row.extra_info())  # what the test has set meanwhile of these is not what was measured
    options = {name: value for name, value in (marker.kwargs if marker else {}).items() if name != "timer"}
    facts, params, options = json.loads(safe_dumps([own, benchmark.params or {}, options]))
    return replace(row, facts=facts, params=params), Options(benchmark.group, benchmark.param, options)


def add(config: pytest.Config, row: Row, options: Options) -> None:
    """Add a row of another process to this session's."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    clock = ReplayClock()
    clock.load(row.provenance.instrument, row.stats.data)
    arguments = {**session.options, **options.marker, "timer": SimpleNamespace(target=clock), "cprofile": False}
    how = {"add_stats": session.benchmarks.append, "logger": session.logger, "warner": None, "disabled": False}
    of_cases = {} if options.param is None else {"callspec": SimpleNamespace(id=options.param, params=row.params)}
    test = SimpleNamespace(name=row.name, nodeid=row.fullname, **of_cases)
    fixture = BenchmarkFixture(test, **how, **arguments)
    fixture.group, fixture.params = options.group, dict(row.params) or None
    fixture.extra_info.update(row.extra_info())
    fixture.pedantic(lambda: None, rounds=row.stats.rounds, iterations=1)


def has_last(config: pytest.Config, test: str) -> bool:
    """Whether the last row that this process has is of this test."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    return bool(session.benchmarks) and session.benchmarks[-1].fullname == test


def forget(config: pytest.Config, test: str) -> None:
    """Drop the row of an attempt that does not count."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    session.benchmarks[:] = [row for row in session.benchmarks if row.fullname != test]


MACHINE = "flashinfer-perf-machine"  # the plugin of this class


class MachineFacts:
    """Facts of the machine for pytest-benchmark's files, found while cases are collected: it may take a second."""

    def __init__(self, config: pytest.Config) -> None:
        own, *others = config.hook.pytest_benchmark_generate_machine_info.get_hookimpls()
        # A project that answers the hook itself is asked instead.
        self._facts = None if others else futures.ThreadPoolExecutor(1).submit(own.function)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Nothing runs beside a case."""
        futures.wait([self._facts] if self._facts else ())

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_generate_machine_info(self) -> Any:
        return copy.deepcopy(self._facts.result()) if self._facts else None
