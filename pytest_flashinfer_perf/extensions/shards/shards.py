"""`--perf-shard i/n`: split tests over machines, in turns, equally on each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from pytest_flashinfer_perf.api import BOARD, FlashinferPerfError, run_file, stash

PART = "flashinfer_perf_shard"


NAME = "shard"  # of the part of a run


class ShardError(FlashinferPerfError):
    """The text says no shard; the message says why."""


class Shard(NamedTuple):
    nth: int
    of: int


@dataclass(frozen=True, kw_only=True)
class ShardOfRun:
    """Which part of a run the file is: n of how many, and the position of each of its tests in the whole run."""

    nth: int
    of: int
    whole: str
    tests: tuple[tuple[int, str], ...]
    count: int = 0
    size: int = 0


def parse(text: str) -> Shard:
    index, slash, of = text.partition("/")
    if not (slash and index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of)):
        raise ShardError(f"must be i/n with i from 1 to n, got {text!r}")
    return Shard(int(index), int(of))


class Sharding:
    """Deselects the tests of other shards, and records in the JSON which part of the run this is."""

    def __init__(self, config: pytest.Config, shard: Shard) -> None:
        self._shard = shard
        self._part: dict[str, Any] = {}
        config.stash[BOARD].is_part = True

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        tests = [item.nodeid for item in items]
        mine = range(self._shard.nth - 1, len(tests), self._shard.of)
        measured = [(at, tests[at]) for at in mine if stash.measures(items[at])]
        whole = hashlib.sha256(json.dumps(tests).encode()).hexdigest()
        sizes = {"count": len(tests), "size": len(mine)}
        self._part = {**self._shard._asdict(), **sizes, "whole": whole, "tests": measured}
        config.hook.pytest_deselected(items=[item for at, item in enumerate(items) if at not in mine])
        items[:] = [items[at] for at in mine]
        if hasattr(config, "workeroutput"):
            config.workeroutput[PART] = json.dumps(self._part)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._part = json.loads(getattr(node, "workeroutput", {}).get(PART, "null")) or self._part

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        own = output_json.setdefault(run_file.SCHEMA_KEY, run_file.Block().written())
        own |= {NAME: self._part} if self._part else {}

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let a shard without tests pass, if the run has tests at all.

        Other plugins set the exit code too: they are told, and overruled.
        """
        self._forgive(session)
        done = yield
        self._forgive(session)
        return done

    def _forgive(self, session: pytest.Session) -> None:
        is_empty = self._part.get("count") and not self._part["size"]
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and is_empty:
            session.exitstatus = pytest.ExitCode.OK
