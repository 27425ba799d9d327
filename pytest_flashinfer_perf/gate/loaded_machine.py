"""Which rows may decide: those of a machine that nobody else used, and of enough calls, by the host's clock.

Rows of a loaded machine are left out where others of their side remain. Where a side has no others, or too few calls,
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


def is_loaded(row: Row, contention: Contended = contention_of_calls) -> bool:
    load = contention(row)
    return load is not None and load.is_loaded


def without_loaded_rows(case: ComparedCase, *, paired: bool) -> ComparedCase:
    """The case without what was measured under load; a side that would be empty stays whole, and of pairs both."""
    if paired:
        quiet = [pair for pair in zip(case.base, case.head, strict=True) if not any(is_loaded(row) for _, row in pair)]
        base, head = zip(*quiet, strict=True) if quiet else ((), ())
    else:
        base, head = (tuple(one for one in side if not is_loaded(one[1])) for side in (case.base, case.head))
    kept = replace(case, base=base or case.base, head=head or case.head)
    left_out = len(case.base) - len(kept.base) + (not paired) * (len(case.head) - len(kept.head))
    return replace(kept, left_out=left_out)


def undecidable_reason(case: ComparedCase) -> tuple[Reason, str] | None:
    """Say why the times of these rows decide nothing; None where they may."""
    few = "; ".join(_few(case))
    return load_reason(case) or ((Reason.FEW_CALLS, few) if few else None)


def load_reason(case: ComparedCase, contention: Contended = contention_of_calls) -> tuple[Reason, str] | None:
    """Say on which sides others used the machine; None where they did not."""
    said = []
    for name, side in zip(SIDES, (case.base, case.head), strict=True):
        loaded_rows = [one for one in side if is_loaded(one[1], contention)]
        if loaded_rows:
            most = max((one for _, row in loaded_rows if (one := contention(row))), key=lambda one: one.share)
            said.append(f"{most.sentence}, in {name} of {_when(loaded_rows)}")
    return (Reason.LOADED, f"{'; '.join(said)}; {REMEDY}") if said else None


def _when(rows: Sequence[RunRow]) -> str:
    return f"{max(run.when for run, _ in rows):%Y-%m-%d %H:%M} UTC"


def _few(case: ComparedCase) -> Iterator[str]:
    for name, side in zip(SIDES, (case.before, case.after), strict=True):
        calls = sum(row.stats.rounds for row in side)
        if all(row.provenance.instrument == "wall" for row in side) and calls < FEWEST_CALLS:
            yield f"{name} has {counted(calls, 'timed call')}, and fewer than {FEWEST_CALLS} decide nothing"
