"""The journal: a line for each case that is started or finished, on disk before the next one starts.

Every process that runs cases adds its lines itself, so that what one of them has finished is there whoever dies next.
A journal is of one run, and of those that resume it; its lines are JSON.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError

SCHEMA = 1
BEGIN = '{"journal"'
WELL = ("passed", "skipped")  # any other outcome makes what was measured before it void
# What a report carries of a case that need not run again.
FINISHED = ("perf_row", "perf_replay", "perf_checked", "perf_repeat")


class JournalError(FlashinferPerfError):
    """A journal that cannot be gone on with; the sentence says why."""


def json_of(config: pytest.Config) -> Path | None:
    asked = config.getoption("benchmark_json")
    return config.invocation_params.dir / asked if asked else None


def path_of(config: pytest.Config) -> Path | None:
    """Beside the JSON, else in pytest's cache; nowhere where that is switched off or cannot be made."""
    beside = json_of(config)
    if beside is not None:
        return beside.with_name(f"{beside.name}.journal")
    cache = getattr(config, "cache", None)
    try:
        return cache.mkdir("flashinfer-perf") / "run.journal" if cache is not None else None
    except OSError:
        return None


@dataclass(frozen=True)
class Past:
    """What an earlier run has left: where it was, and what it finished."""

    path: Path
    run: str
    places: tuple[Mapping[str, Any], ...]
    finished: Mapping[str, Mapping[str, Any]] = field(repr=False)

    @property
    def repeats(self) -> dict[str, str]:
        """What was run: a test of that name may be another by now."""
        return {test: report.get("perf_repeat", "") for test, report in self.finished.items()}


def read(path: Path) -> Past | None:
    """Nothing, where there is no journal. Lines of another run are of one that did not notice the end of its own."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        if _never_begun(lines):
            return None
        said = list(_said(path, lines))
        if not said or said[0].get("journal") != SCHEMA:
            raise JournalError(f"{path} is no journal of this version: leave out --perf-resume, or remove it")
        run, places = said[0]["run"], tuple(line["place"] for line in said if "journal" in line)
        return Past(path, run, places, _finished(line for line in said if line.get("run") == run))
    except FileNotFoundError:
        return None
    except (OSError, LookupError, TypeError) as error:
        raise JournalError(f"{path} is no journal ({error!r}): leave out --perf-resume, or remove it") from error


def _never_begun(lines: list[str]) -> bool:
    """Killed before its first line was whole."""
    first = "".join(lines)
    return len(lines) < 2 and _parsed(first) is None and BEGIN.startswith(first[: len(BEGIN)])


def _finished(said: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The first measurement of each, where nothing failed later: its teardown, or itself when it was measured again."""
    done: dict[str, Mapping[str, Any]] = {}
    for line in said:
        if line.get("outcome") == "passed" and line["report"]:
            done.setdefault(line["finished"], line["report"])
        elif "finished" in line and line["outcome"] not in WELL:
            done.pop(line["finished"], None)
    return done


def _said(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    """A line may be torn where a run was killed: at the end, or before another run went on."""
    for at, (line, following) in enumerate(zip(lines, [*lines[1:], BEGIN], strict=True), start=1):
        said = _parsed(line)
        if said is not None:
            yield said
        elif not following.startswith(BEGIN):
            raise JournalError(f"{path}:{at}: not a line of a journal: leave out --perf-resume, or remove that line")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def started(path: Path, test: str) -> dict[str, Any]:
    """What the last start of this test has said."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (line for line in reversed(lines) if line.startswith('{"started"'))
    return next((said for line in found if (said := _parsed(line)) and said["started"] == test), {})


class Journal:
    """Open for this process; several have the same file open."""

    def __init__(self, path: Path, run: str, place: Mapping[str, Any]) -> None:
        self._run = run
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._begin(run, place)
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def _begin(self, run: str, place: Mapping[str, Any]) -> None:
        """Another run's lines go; those of this one stay, and the last of them is ended where it was torn."""
        size = os.fstat(self._file).st_size
        first = os.pread(self._file, 1 << 16, 0).partition(b"\n")[0]
        if f'"run": "{run}"'.encode() not in first:
            os.ftruncate(self._file, 0)
        elif os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
        self._add({"journal": SCHEMA, "run": run, "place": place})

    def started(self, test: str, identity: Mapping[str, Any], repeat: str) -> None:
        self._add({"started": test, "identity": identity, "repeat": repeat})

    def finished(self, report: pytest.TestReport) -> None:
        kept = {name: getattr(report, name) for name in FINISHED if hasattr(report, name)}
        self._add({"finished": report.nodeid, "run": self._run, "outcome": report.outcome, "report": kept})
        os.fsync(self._file)

    def _add(self, said: Mapping[str, Any]) -> None:
        """In one piece: what several processes append does not mix."""
        line = f"{json.dumps(said)}\n".encode()
        if os.write(self._file, line) < len(line):
            raise OSError(errno.ENOSPC, "no space left for the journal")

    def close(self) -> None:
        os.close(self._file)
