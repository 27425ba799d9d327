"""The journal: a line for each case that is finished, on disk before the next one starts.

Every process that runs cases adds its lines itself, so that what one of them has finished is there whoever dies next.
A journal is of one run, and of those that resume it; its lines are JSON.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import FlashinferPerfError, fields, reports, setup

SCHEMA = 2
BEGIN = '{"journal"'
WELL = ("passed", "skipped")  # any other outcome makes what was measured before it void


class JournalError(FlashinferPerfError):
    """The journal cannot be resumed; the message says why."""


def path_of(config: pytest.Config) -> Path | None:
    """The path of the journal, beside the JSON; None for a run that keeps nothing."""
    beside = setup.json_of(config)
    return beside and beside.with_name(f"{beside.name}.journal")


class Journal:
    """Appends lines to the file, as other processes of the run do at the same time."""

    def __init__(self, path: Path, run: str, place: Mapping[str, Any]) -> None:
        self._path = path
        self._run = run
        self.lost: OSError | None = None  # why it has no line of what came last
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._begin(run, place)
            fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError:
            self.close()
            raise

    def _begin(self, run: str, place: Mapping[str, Any]) -> None:
        """Remove another run's lines; keep those of this one, and end the last where it was cut off."""
        size = os.fstat(self._file).st_size
        first = os.pread(self._file, 1 << 16, 0).partition(b"\n")[0]
        if f'"run": "{run}"'.encode() not in first:
            os.ftruncate(self._file, 0)
        elif os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
        self._write({"journal": SCHEMA, "run": run, "place": place})

    def finished(self, report: pytest.TestReport) -> None:
        kept = reports.written(reports.of(report))
        self._add({"finished": report.nodeid, "run": self._run, "outcome": report.outcome, "report": kept})
        with suppress(OSError):  # of a disk that is full, which `lost` says
            os.fsync(self._file)

    def _add(self, entry: Mapping[str, Any]) -> None:
        """Add a line, if that is possible: what is measured does not depend on it."""
        try:
            self._write(entry)
        except OSError as error:
            self.lost = error

    def _write(self, entry: Mapping[str, Any]) -> None:
        """Append a line in one write, so that lines of several processes do not mix."""
        line = f"{json.dumps(entry)}\n".encode()
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def close(self) -> None:
        os.close(self._file)


# A journal is read by the run that resumes it.


@dataclass(frozen=True)
class Past:
    """An earlier run: where it was made, and what it finished."""

    path: Path
    run: str
    places: tuple[Mapping[str, Any], ...]
    finished: Mapping[str, reports.CaseReport] = field(repr=False)

    @property
    def repeats(self) -> dict[str, str]:
        """The command that measured each finished test: a test of that name may be another by now."""
        return {test: report.repeat or "" for test, report in self.finished.items()}


def read(path: Path) -> Past | None:
    """The journal, None if there is none. Lines of another run, by a process that outlived it, are ignored."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        first = "".join(lines)
        if len(lines) < 2 and _parsed(first) is None and BEGIN.startswith(first[: len(BEGIN)]):
            return None  # the run was killed before the first line was whole
        entries = list(_entries(path, lines))
        if not entries or entries[0].get("journal") != SCHEMA:
            raise JournalError(f"{path} is no journal of this version: leave out --perf-resume, or remove it")
        run, places = entries[0]["run"], tuple(entry["place"] for entry in entries if "journal" in entry)
        return Past(path, run, places, _finished(entry for entry in entries if entry.get("run") == run))
    except FileNotFoundError:
        return None
    except (OSError, LookupError, TypeError, fields.FieldError) as error:
        raise JournalError(f"{path} is no journal ({error!r}): leave out --perf-resume, or remove it") from error


def _finished(entries: Iterable[Mapping[str, Any]]) -> dict[str, reports.CaseReport]:
    """The first measurement of each, where nothing failed later: its teardown, or itself when it was measured again."""
    done: dict[str, reports.CaseReport] = {}
    for entry in entries:
        if entry.get("outcome") == "passed" and entry["report"]:
            done.setdefault(entry["finished"], reports.read(entry["report"], entry["finished"]))
        elif "finished" in entry and entry["outcome"] not in WELL:
            done.pop(entry["finished"], None)
    return done


def _entries(path: Path, lines: list[str]) -> Iterator[dict[str, Any]]:
    """A line may be torn where a run was killed: at the end, or before another run went on."""
    for at, (line, following) in enumerate(zip(lines, [*lines[1:], BEGIN], strict=True), start=1):
        entry = _parsed(line)
        if entry is not None:
            yield entry
        elif not following.startswith(BEGIN):
            raise JournalError(f"{path}:{at}: not a line of a journal: leave out --perf-resume, or remove that line")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None
