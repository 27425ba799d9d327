"""A line of flags as cases: of `--perf-case`, and of files that extensions read.

A line is one of a routine, or of what extensions know by another name (`pytest_perf_line`). `read` is for a line whose
cases this project may lack, `cases_of` for words that must be cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines import all_backends, all_routines
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import STAND_IN, Case, FlagLine, MissingCaseError
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import AnyRoutine


@dataclass(frozen=True)
class Entry:
    """A case; or `missing`, if this project lacks it, which is a skip; or `problem`, a failure, if it is not valid."""

    name: str
    case: Case | None = None
    missing: str = ""
    problem: str = ""
    where: str = ""
    text: str = ""
    parsed: FlagLine | None = None

    @property
    def identity(self) -> Identity:
        """The names in reports; a line without a case has its own."""
        return self.case.identity if self.case else Identity(case=self.name)


def read(line: str, where: str, backends: Sequence[str] = ()) -> list[Entry]:
    """The entries of a line: one for each of `backends`, or of its own, or of the usual ones and the stand-in."""
    unread = Entry(_slug(line), where=where, text=line)
    try:
        parsed = parse(flags.split(line), all_routines())
    except MissingCaseError as reason:
        return [replace(unread, missing=str(reason))]
    except ParamError as error:
        return [replace(unread, problem=str(error))]
    unread, names = replace(unread, parsed=parsed), backends or parsed.backends
    stand_in = [STAND_IN] if not names and STAND_IN in parsed.routine.backends else []
    measured = [_entry(unread, parsed, name) for name in names or parsed.usual]
    return measured + [_entry(unread, parsed, name, stands_in=True) for name in stand_in]


def _entry(unread: Entry, line: FlagLine, backend: str, *, stands_in: bool = False) -> Entry:
    nameless = replace(unread, name=f"{line.routine.name}[{line.shape.id}-{backend}]")
    try:
        case = replace(line.case(backend), stands_in=stands_in)
    except ParamError as error:
        if isinstance(error, MissingCaseError) or backend in {*capability.HARDWARE, *all_backends()}:
            return replace(nameless, missing=f"{line.routine.name} has no backend {backend} in this project")
        return replace(nameless, problem=str(error))
    return replace(unread, name=f"{case.routine.name}[{case.id}]", case=case)


def _slug(line: str) -> str:
    words = re.sub(r"[^\w.=,-]+", "_", line.strip().replace("--routine ", "", 1)).strip("_-")
    return f"line[{words[:80]}]"


def numbered(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Number the entries of a file that repeat an earlier one."""
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry.name] += 1
        if (nth := counts[entry.name]) == 1:
            yield entry
        elif entry.case is None:
            yield replace(entry, name=f"{entry.name[:-1]}-{nth}]")
        else:
            repeated = replace(entry.case, nth=nth)
            yield replace(entry, name=f"{repeated.routine.name}[{repeated.id}]", case=repeated)


def cases_of(words: Iterable[str], routines: Mapping[str, AnyRoutine]) -> list[Case]:
    """A line's cases, a case per backend."""
    return parse(list(words), routines).cases()


def parse(words: list[str], routines: Mapping[str, AnyRoutine]) -> FlagLine:
    line: FlagLine | None = loading.manager().hook.pytest_perf_line(words=words, routines=routines)
    return cases.parse(words, dict(routines)) if line is None else line
