"""The two sides of a comparison: the rows of each case, and what prevents a verdict."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import comparable
from pytest_flashinfer_perf.gate.comparable import Difference
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import FAILED, Run, Unmeasured
from pytest_flashinfer_perf.rows.scatter import is_measured

RunRow = tuple[Run, Row]

# `--perf-gate-allow` does not permit these: an answer was wrong, or the case broke.
NEVER_ALLOWED = ("wrong-answer", FAILED)
ROUNDED = 0.01  # the most that a writer of such files may round by


@dataclass(frozen=True)
class ComparedCase:
    """The rows of one case on both sides. If paired, the n-th of both sides belong together.

    `torn`: one side of a pair lacks the case. A case that failed, and that neither side measured, has no rows.
    """

    name: str
    base: tuple[RunRow, ...]
    head: tuple[RunRow, ...]
    torn: bool = False

    @property
    def before(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.base)

    @property
    def after(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.head)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first of them says what the case is."""
        return (*self.after, *self.before)

    @property
    def names(self) -> tuple[str, ...]:
        """Runs know a case without a row by its name or by its test's id."""
        return tuple(dict.fromkeys((self.name, *(row.fullname for row in self.rows))))


@dataclass(frozen=True)
class Trouble:
    """Why there is no verdict on a change: the case is MISSING, or its rows are INVALID."""

    missing: bool
    reason: str
    sentence: str


def cases(base: Sequence[Run], head: Sequence[Run], *, paired: bool) -> list[ComparedCase]:
    names = dict.fromkeys(name for run in (*base, *head) for name in run.by_case)
    measured = [_paired(name, base, head) if paired else _unpaired(name, base, head) for name in names]
    known = {name for case in measured for name in case.names}
    failed = dict.fromkeys(name for run in head for name in run.failed if name not in known)
    return [*measured, *(ComparedCase(name, (), ()) for name in failed)]


def _unpaired(name: str, base: Sequence[Run], head: Sequence[Run]) -> ComparedCase:
    before, after = (tuple((run, run.by_case[name]) for run in side if name in run.by_case) for side in (base, head))
    return ComparedCase(name, before, after)


def _paired(name: str, base: Sequence[Run], head: Sequence[Run]) -> ComparedCase:
    whole = [(b, h) for b, h in zip(base, head, strict=True) if name in b.by_case and name in h.by_case]
    if not whole:
        return _unpaired(name, base, head)
    torn = any((name in b.by_case) != (name in h.by_case) for b, h in zip(base, head, strict=True))
    return ComparedCase(
        name, tuple((b, b.by_case[name]) for b, _ in whole), tuple((h, h.by_case[name]) for _, h in whole), torn
    )


def trouble(
    case: ComparedCase, base: Sequence[Run], head: Sequence[Run], *, same_library: bool, allowed: frozenset[str]
) -> Trouble | None:
    found = next(_troubles(case, base, head), None)
    if found or not case.base:
        return found
    unlike = [d for d in differences(case, same_library=same_library) if d.facet.name not in allowed]
    if unlike:
        return Trouble(missing=False, reason=unlike[0].facet.name, sentence="; ".join(d.sentence for d in unlike))
    return None


def differences(case: ComparedCase, *, same_library: bool) -> list[Difference]:
    return comparable.differences(case.base, case.head, same_library=same_library)


def _troubles(case: ComparedCase, base: Sequence[Run], head: Sequence[Run]) -> Iterator[Trouble]:
    """Troubles that cannot be allowed come first."""
    yield from _failures(case, base, head)
    yield from _wrong_answers(case, head)
    if case.base and not case.head:
        yield _missing(case, head)
    for side, seen in (("this run", case.head), ("the baseline", case.base)):
        for run, row in seen:
            yield from (_invalid(reason, f"{run.source}: {fault}") for reason, fault in _faults(run, row, side))
    if case.torn:
        yield _invalid("torn", "one side of a pair of processes measured it, the other did not")


def _invalid(reason: str, sentence: str) -> Trouble:
    return Trouble(missing=False, reason=reason, sentence=sentence)


def _failures(case: ComparedCase, base: Sequence[Run], head: Sequence[Run]) -> Iterator[Trouble]:
    before = "; it fails in the baseline too" if any(_failure(run, case) for run in base) else ""
    missing = bool(case.base and not case.head)
    for run in head:
        failure = _failure(run, case)
        if failure:
            where = "in the baseline, not in this run" if missing else run.source
            measured = ": measured, and failed" if case.head else ""
            yield Trouble(missing, FAILED, f"{where}{measured}: {failure.headline}{before}")


def _failure(run: Run, case: ComparedCase) -> Unmeasured | None:
    ended = run.ended(case.names)
    return ended if ended and ended.outcome == FAILED else None


def _wrong_answers(case: ComparedCase, head: Sequence[Run]) -> Iterator[Trouble]:
    """In a process without a partner too."""
    before = ", and in the baseline" if any(row.is_wrong for row in case.before) else ""
    for run in head:
        if case.name in run.by_case and run.by_case[case.name].is_wrong:
            yield _invalid("wrong-answer", f"{run.source}: its answer is wrong in this run{before}")


def _missing(case: ComparedCase, head: Sequence[Run]) -> Trouble:
    ended = next(filter(None, (run.ended(case.names) for run in head)), None)
    outcome, reason = (ended.outcome, ended.headline) if ended else ("vanished", "it is not mentioned")
    return Trouble(missing=True, reason=outcome, sentence=f"in the baseline, not in this run: {reason}")


def _faults(run: Run, row: Row, side: str) -> Iterator[tuple[str, str]]:
    if row.is_wrong:
        yield "wrong-baseline", f"its answer is wrong in {side}"
    if row.status == "invalid":
        yield "beyond-roof", f"faster than the device can be, in {side}"
    if not is_measured(row.median):
        yield "no-time", f"its median is {row.median} in {side}"
    elif row.stats.data and not math.isclose(row.median, statistics.median(row.stats.data), rel_tol=ROUNDED):
        yield "no-time", f"its median is not of its samples in {side}"
    if row.case in run.twice:
        yield "twice", f"two rows of {side} have this name"
