"""Samples that another process measured become a row, as if pytest-benchmark had timed them here.

It is off under xdist and has no way to add a row: its fixture is made for a stand-in of the test. The constructor of
that fixture is not documented; this module is all that knows it.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from pytest_benchmark.utils import safe_dumps

from pytest_flashinfer_perf.running.record import ReplayClock


def shipped(item: pytest.Item, instrument: str, samples: tuple[float, ...]) -> str:
    """All that a row is made of; in pytest-benchmark's own JSON, so that it is the same on both sides."""
    benchmark = item.funcargs["benchmark"]  # type: ignore[attr-defined] # of a test with the perf fixture
    marker = item.get_closest_marker("benchmark")
    said = {name: value for name, value in (marker.kwargs if marker else {}).items() if name != "timer"}
    identity = {
        name: getattr(benchmark, name) for name in ("name", "fullname", "group", "param", "params", "extra_info")
    }
    return str(safe_dumps({**identity, "options": said, "instrument": instrument, "samples": samples}))


def row(config: pytest.Config, text: str) -> dict[str, Any]:
    """Add the row to this session's; what the gate needs of it."""
    said = json.loads(text)
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    clock = ReplayClock()
    clock.load(said["instrument"], said["samples"])
    options = {**session.options, **said["options"], "timer": SimpleNamespace(target=clock), "cprofile": False}
    how = {"add_stats": session.benchmarks.append, "logger": session.logger, "warner": None, "disabled": False}
    fixture = BenchmarkFixture(_stand_in(said), **how, **options)
    fixture.group, fixture.params = said["group"], said["params"]
    fixture.extra_info.update(said["extra_info"])
    fixture.pedantic(lambda: None, rounds=len(said["samples"]), iterations=1)
    whole = fixture.stats.as_dict(include_data=False)
    return {name: whole[name] for name in ("name", "fullname", "extra_info", "stats")}


def forget(config: pytest.Config, test: str) -> None:
    """A row of an attempt that does not count."""
    session: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    session.benchmarks[:] = [row for row in session.benchmarks if row.fullname != test]


def _stand_in(said: dict[str, Any]) -> SimpleNamespace:
    of_cases = {} if said["param"] is None else {"callspec": SimpleNamespace(id=said["param"], params=said["params"])}
    return SimpleNamespace(name=said["name"], nodeid=said["fullname"], **of_cases)
