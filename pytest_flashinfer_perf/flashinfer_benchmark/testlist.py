"""A file of `flashinfer_benchmark.py` lines: what each of them asks for, or why it cannot be had."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flashinfer_perf.flashinfer_benchmark import upstream
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines import all_backends, all_routines
from pytest_flashinfer_perf.runs.row import Identity
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case, Line, UnknownRoutineError
from pytest_flashinfer_perf.spec.params import ParamError

STARTS = re.compile(r"\s*(--routine|-R)\b")


@dataclass(frozen=True)
class Entry:
    """A case; or what this project has not got, which is a skip; or what cannot be understood, which is a failure."""

    name: str
    case: Case | None = None
    missing: str = ""
    problem: str = ""
    where: str = ""

    @property
    def identity(self) -> Identity:
        """Of a line without a case."""
        return Identity(case=self.name)


def is_testlist(path: Path) -> bool:
    """Whether any line names a routine; a text that is something else is left to others."""
    return any(map(STARTS.match, _lines(path)))


def read(path: Path, said_of_all: str = "", instead: Sequence[str] = ()) -> list[Entry]:
    """An entry for each backend of each line, or each one `instead`; one for each line that has none.

    Equal ones are numbered.
    """
    found: list[Entry] = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found += _entries(f"{said_of_all} {line}".strip(), f"{path.name}:{number}", instead)
    return list(_numbered(found))


def default_backends(line: Line) -> Iterable[str]:
    """Upstream's, where it is one of the routine's."""
    usual = upstream.DEFAULT_BACKEND.get(line.routine.family, "")
    return [usual] if usual in line.routine.backends else line.routine.backends


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding=_encoding(path), errors="replace").splitlines()


def _encoding(path: Path) -> str:
    """Windows' editors begin a file with a mark, and its shell writes UTF-16."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def of_one(line: str, where: str) -> list[Entry]:
    """An entry for each backend of a line, or for each of its routine's."""
    return _entries(line, where, (), lambda read: read.routine.backends)


def _entries(
    line: str, where: str, instead: Sequence[str], usual: Callable[[Line], Iterable[str]] = default_backends
) -> list[Entry]:
    try:
        read = cases.parse(flags.split(line), all_routines())
    except ParamError as error:
        if isinstance(error, UnknownRoutineError) and error.name in upstream.ROUTINES:
            missing = f"{error.name} is a routine that this project does not have"
            return [Entry(_slug(line), missing=missing, where=where)]
        return [Entry(_slug(line), problem=str(error), where=where)]
    return [_entry(read, name, where) for name in instead or read.backends or usual(read)]


def _entry(line: Line, backend: str, where: str) -> Entry:
    name = f"{line.routine.name}[{line.shape.id}-{backend}]"
    try:
        case = line.case(backend)
    except ParamError as error:
        if backend in {*capability.HARDWARE, *all_backends(), *upstream.BACKENDS}:
            missing = f"{line.routine.name} has no backend {backend} in this project"
            return Entry(name, missing=missing, where=where)
        return Entry(name, problem=str(error), where=where)
    return Entry(f"{case.routine.name}[{case.id}]", case)


def _slug(line: str) -> str:
    words = re.sub(r"[^\w.=,-]+", "_", line.strip().replace("--routine ", "", 1)).strip("_-")
    return f"line[{words[:80]}]"


def _numbered(entries: Iterable[Entry]) -> Iterator[Entry]:
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry.name] += 1
        if (nth := seen[entry.name]) == 1:
            yield entry
        elif entry.case is None:
            yield replace(entry, name=f"{entry.name[:-1]}-{nth}]")
        else:
            again = replace(entry.case, nth=nth)
            yield Entry(f"{again.routine.name}[{again.id}]", again)
