"""The two sides of a comparison: which processes measured a case, and what keeps it from being judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import likeness
from pytest_flashinfer_perf.gate.likeness import Difference
from pytest_flashinfer_perf.gate.runs import Row, Run

Seen = tuple[Run, Row]

# Nobody can allow these: an answer was wrong, or the case broke.
NEVER_ALLOWED = ("wrong-answer", "failed")


@dataclass(frozen=True)
class Case:
    """Paired, the n-th of either side belong together; `torn` when one side of a pair has it and the other has not."""

    name: str
    base: tuple[Seen, ...]
    head: tuple[Seen, ...]
    torn: bool = False

    @property
    def before(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.base)

    @property
    def after(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.head)

    @property
    def row(self) -> Row:
        """One that says what the case is."""
        return (self.after or self.before)[0]


@dataclass(frozen=True)
class Trouble:
    """Why there is no verdict on a change: the case is MISSING, or its rows are INVALID."""

    missing: bool
    reason: str
    sentence: str


def cases(base: Sequence[Run], head: Sequence[Run], *, paired: bool) -> list[Case]:
    names = dict.fromkeys(name for run in (*base, *head) for name in run.rows)
    return [_paired(name, base, head) if paired else _unpaired(name, base, head) for name in names]


def _unpaired(name: str, base: Sequence[Run], head: Sequence[Run]) -> Case:
    before, after = (tuple((run, run.rows[name]) for run in side if name in run.rows) for side in (base, head))
    return Case(name, before, after)


def _paired(name: str, base: Sequence[Run], head: Sequence[Run]) -> Case:
    whole = [(b, h) for b, h in zip(base, head, strict=True) if name in b.rows and name in h.rows]
    if not whole:
        return _unpaired(name, base, head)
    torn = any((name in b.rows) != (name in h.rows) for b, h in zip(base, head, strict=True))
    return Case(name, tuple((b, b.rows[name]) for b, _ in whole), tuple((h, h.rows[name]) for _, h in whole), torn)


def trouble(case: Case, head: Sequence[Run], *, same_library: bool, allowed: frozenset[str]) -> Trouble | None:
    if not case.head:
        return _missing(case, head)
    found = next(_invalid(case, head), None)
    if found or not case.base:
        return found
    unlike = [d for d in differences(case, same_library=same_library) if d.facet.name not in allowed]
    if unlike:
        return Trouble(missing=False, reason=unlike[0].facet.name, sentence="; ".join(d.sentence for d in unlike))
    return None


def differences(case: Case, *, same_library: bool) -> list[Difference]:
    return likeness.differences(case.base, case.head, same_library=same_library)


def _missing(case: Case, head: Sequence[Run]) -> Trouble:
    known = [said for run in head if (said := run.said_of(case.row))]
    outcome, reason = known[0] if known else ("vanished", "this run says nothing of it")
    return Trouble(missing=True, reason=outcome, sentence=f"in the baseline, not in this run: {reason}")


def _invalid(case: Case, head: Sequence[Run]) -> Iterator[Trouble]:
    for side, seen in (("this run", case.head), ("the baseline", case.base)):
        for run, row in seen:
            yield from (
                Trouble(missing=False, reason=r, sentence=f"{run.source}: {s}") for r, s in _faults(run, row, side)
            )
    for run in head:
        outcome, reason = run.said_of(case.row) or ("", "")
        if outcome == "failed":
            yield Trouble(missing=False, reason=outcome, sentence=f"{run.source}: measured, and failed: {reason}")
    if case.torn:
        sentence = "one side of a pair of processes measured it, the other did not"
        yield Trouble(missing=False, reason="torn", sentence=sentence)


def _faults(run: Run, row: Row, side: str) -> Iterator[tuple[str, str]]:
    status = row.info.get("status")
    if status == "wrong":
        yield ("wrong-answer" if side == "this run" else "wrong-baseline"), f"its answer is wrong in {side}"
    if status == "invalid":
        yield "beyond-roof", f"faster than the device can be, in {side}"
    if not (math.isfinite(row.median) and row.median > 0):
        yield "no-time", f"its median is {row.median} in {side}"
    if row.case in run.twice:
        yield "twice", f"two rows of {side} have this name"
