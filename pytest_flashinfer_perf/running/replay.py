"""Record samples that another process measured as a row of pytest-benchmark.

It is off under xdist and has no way to add a row: its fixture is made for a stand-in of the test. The constructor of
that fixture and the class of its statistics are not documented; this module is all that knows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark import stats
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import safe_dumps

from pytest_flashinfer_perf.running.record import ReplayClock
from pytest_flashinfer_perf.running.reports import Options
from pytest_flashinfer_perf.runs.row import NAMES, Row, Stats


def statistics(samples: Iterable[float]) -> Stats:
    """Those that pytest-benchmark will write."""
    made: Any = stats.Stats()
    for sample in samples:
        made.update(sample)
    known = {name: getattr(made, name) for name in ("median", "mean", "stddev", "iqr", "rounds", "total")}
    return Stats(**known, data=tuple(made.data))


def finished(item: pytest.Item, row: Row, benchmark: Any) -> tuple[Row, Options]:
    """The row as pytest-benchmark's JSON will have it, with what the test itself has added to its fixture by now."""
    marker = item.get_closest_marker("benchmark")
    own = {name: value for name, value in benchmark.extra_info.items() if name not in NAMES}
    benchmark.extra_info.update(row.extra_info())  # what the test has set meanwhile of these is not what was measured
    given = {name: value for name, value in (marker.kwargs if marker else {}).items() if name != "timer"}
    facts, params, given = json.loads(safe_dumps([own, benchmark.params or {}, given]))
    return replace(row, facts=facts, params=params), Options(benchmark.group, benchmark.param, given)


def add(config: pytest.Config, row: Row, options: Options) -> None:
    """To this session's rows."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    clock = ReplayClock()
    clock.load(row.provenance.instrument, row.stats.data)
    given = {**session.options, **options.marker, "timer": SimpleNamespace(target=clock), "cprofile": False}
    how = {"add_stats": session.benchmarks.append, "logger": session.logger, "warner": None, "disabled": False}
    fixture = BenchmarkFixture(_stand_in(row, options), **how, **given)
    fixture.group, fixture.params = options.group, dict(row.params) or None
    fixture.extra_info.update(row.extra_info())
    fixture.pedantic(lambda: None, rounds=row.stats.rounds, iterations=1)


def forget(config: pytest.Config, test: str) -> None:
    """A row of an attempt that does not count."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    session.benchmarks[:] = [row for row in session.benchmarks if row.fullname != test]


def _stand_in(row: Row, options: Options) -> SimpleNamespace:
    of_cases = {} if options.param is None else {"callspec": SimpleNamespace(id=options.param, params=row.params)}
    return SimpleNamespace(name=row.name, nodeid=row.fullname, **of_cases)
