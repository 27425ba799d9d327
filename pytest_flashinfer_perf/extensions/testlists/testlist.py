"""Read a file of `flashinfer_benchmark.py` lines: the cases of each line, or why it has none.

`read` is for a file, `read_line` for one of its lines, and `cases_of_line` for words that must be cases.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flashinfer_perf.extensions.apis import NotAnApiError, api_named
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines import all_backends, all_routines, upstream
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case, FlagLine, UnknownRoutineError
from pytest_flashinfer_perf.spec.params import ParamError, fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine

STAND_IN = "torch"  # it is measured beside upstream's backends where there is no GPU
STARTS = re.compile(r"\s*(--routine|-R|--api)\b")


@dataclass(frozen=True)
class TestlistLine:
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
        """The names in reports, for a line without a case its own."""
        return self.case.identity if self.case else Identity(case=self.name)


def is_testlist(path: Path) -> bool:
    """Whether any line names a routine; other text files are not testlists."""
    return any(map(STARTS.match, _lines(path)))


def read(path: Path, flags_of_all: str = "", backends: Sequence[str] = ()) -> list[TestlistLine]:
    """An entry for each line and backend, or for each of `backends`; one for each line without a case.

    Equal entries are numbered.
    """
    found: list[TestlistLine] = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            found += read_line(f"{flags_of_all} {line}".strip(), f"{path.name}:{number}", backends)
    return list(numbered(found))


def default_backends(routine: AnyRoutine) -> list[str]:
    """Those that upstream measures where a line names none; of what upstream has not, all but `torch`."""
    usual = upstream.DEFAULT_BACKEND.get(routine.name, upstream.DEFAULT_BACKEND.get(routine.family, ""))
    runs = {usual} if usual in routine.backends else upstream.RUNS.get(routine.name, routine.backends)
    return [name for name in routine.backends if name in runs and name != STAND_IN]


def _lines(path: Path) -> list[str]:
    """The encoding is known by the byte order mark: Windows' editors write one, and its shell writes UTF-16."""
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return content.decode(encoding, errors="replace").splitlines()


def read_line(line: str, where: str, backends: Sequence[str] = ()) -> list[TestlistLine]:
    """The entries of a single line: one for each of `backends`, or of its own, or of upstream's and the stand-in."""
    unread = TestlistLine(_slug(line), where=where, text=line)
    try:
        read = parse(flags.split(line), all_routines())
    except NotAnApiError as error:
        return [replace(unread, missing=str(error))]
    except ParamError as error:
        if isinstance(error, UnknownRoutineError) and error.name in upstream.ELSEWHERE:
            return [replace(unread, missing=upstream.ELSEWHERE[error.name].format(error.name))]
        return [replace(unread, problem=str(error))]
    unread, asked = replace(unread, parsed=read), backends or read.backends
    stand_in = [STAND_IN] if not asked and STAND_IN in read.routine.backends else []
    measured = [_entry(unread, read, name) for name in asked or default_backends(read.routine)]
    return measured + [_entry(unread, read, name, stands_in=True) for name in stand_in]


def _entry(unread: TestlistLine, line: FlagLine, backend: str, *, stands_in: bool = False) -> TestlistLine:
    nameless = replace(unread, name=f"{line.routine.name}[{line.shape.id}-{backend}]")
    try:
        case = replace(line.case(backend), stands_in=stands_in)
    except ParamError as error:
        known = {*capability.HARDWARE, *all_backends(), *upstream.BACKENDS}
        if line.routine.option == "--api" or backend in known:
            return replace(nameless, missing=f"{line.routine.name} has no backend {backend} in this project")
        return replace(nameless, problem=str(error))
    return replace(unread, name=f"{case.routine.name}[{case.id}]", case=case)


def _slug(line: str) -> str:
    words = re.sub(r"[^\w.=,-]+", "_", line.strip().replace("--routine ", "", 1)).strip("_-")
    return f"line[{words[:80]}]"


def numbered(entries: Iterable[TestlistLine]) -> Iterator[TestlistLine]:
    seen: Counter[str] = Counter()
    for entry in entries:
        seen[entry.name] += 1
        if (nth := seen[entry.name]) == 1:
            yield entry
        elif entry.case is None:
            yield replace(entry, name=f"{entry.name[:-1]}-{nth}]")
        else:
            again = replace(entry.case, nth=nth)
            yield replace(entry, name=f"{again.routine.name}[{again.id}]", case=again)


# Read a line of flags: of a routine, of an API, or of upstream's routine that is an API here.


def cases_of_line(line: Iterable[str], routines: dict[str, AnyRoutine]) -> list[Case]:
    """A line's cases, a case per backend."""
    return parse(line, routines).cases()


def parse(line: Iterable[str], routines: dict[str, AnyRoutine]) -> FlagLine:
    words = list(line)
    name = cases.name_in(words)
    if any(word.partition("=")[0] == "--api" for word in words):
        api = api_named(name)
        spellings = {spelling for field in fields_of(api.params) for spelling in field.spellings}
        return cases.parse_of(api, words, spellings)
    if name in routines or not upstream.may_be_api(name):
        return cases.parse(words, routines)
    from pytest_flashinfer_perf.extensions.apis import upstream_names  # imports torch

    described = upstream_names.api_of(name, words)
    api = api_named(described.name)
    return cases.parse_of(api, words, (), lambda rest: upstream_names.translated(name, described, rest))
