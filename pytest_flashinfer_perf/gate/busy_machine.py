"""Which rows may decide: those of a machine that was not busy, and of enough calls, by the host's clock.

Rows of a busy machine are left out where others of their side remain. Where a side has no others, or too few calls,
the case is AMBIGUOUS, whatever its change. A load too small for that widens the noise of the case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.gate.match import ComparedCase, Reason, RunRow
from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.row import Row

FEWEST_CALLS = 5
REMEDY = "measure again when nothing else runs"
SIDES = ("the baseline", "this run")


Contended = Callable[[Row], "Contention | None"]  # what else ran while a figure of the row was measured


def contention_of_calls(row: Row) -> Contention | None:
    """What else ran beside the timed calls; None where a GPU's instrument timed them."""
    return row.execution.contention


def is_busy(row: Row, contention: Contended = contention_of_calls) -> bool:
    load = contention(row)
    return load is not None and load.is_busy


def without_busy_rows(case: ComparedCase, *, paired: bool) -> ComparedCase:
    """The case without what a busy machine measured; the whole case where nothing of a side would be left."""
    if paired:
        quiet = [pair for pair in zip(case.base, case.head, strict=True) if not any(is_busy(row) for _, row in pair)]
        base, head = zip(*quiet, strict=True) if quiet else ((), ())
    else:
        base, head = (tuple(one for one in side if not is_busy(one[1])) for side in (case.base, case.head))
    kept = replace(case, base=base or case.base, head=head or case.head)
    left_out = len(case.base) - len(kept.base) + (not paired) * (len(case.head) - len(kept.head))
    return replace(kept, left_out=left_out)


def undecidable_reason(case: ComparedCase) -> tuple[Reason, str] | None:
    """Say why the times of these rows decide nothing; None where they may."""
    few = "; ".join(_few(case))
    return busy_reason(case) or ((Reason.FEW_CALLS, few) if few else None)


def busy_reason(case: ComparedCase, contention: Contended = contention_of_calls) -> tuple[Reason, str] | None:
    """Say on which side the machine was busy; None where it was not."""
    for name, side in zip(SIDES, (case.base, case.head), strict=True):
        busy_rows = [one for one in side if is_busy(one[1], contention)]
        if busy_rows:
            most = max((one for _, row in busy_rows if (one := contention(row))), key=lambda one: one.share)
            return Reason.BUSY, f"{most.sentence}, in {name} of {_when(busy_rows)}; {REMEDY}"
    return None


def _when(busy: Sequence[RunRow]) -> str:
    return f"{max(run.when for run, _ in busy):%Y-%m-%d %H:%M} UTC"


def _few(case: ComparedCase) -> Iterator[str]:
    for name, side in zip(SIDES, (case.before, case.after), strict=True):
        calls = sum(row.stats.rounds for row in side)
        if all(row.provenance.instrument == "wall" for row in side) and calls < FEWEST_CALLS:
            yield f"{name} has {counted(calls, 'timed call')}, and fewer than {FEWEST_CALLS} decide nothing"
