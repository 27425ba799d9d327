"""How far a comparison can be trusted, and which command would decide AMBIGUOUS cases."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate.figures import of_placements
from pytest_flashinfer_perf.gate.noise import FEWEST_PLACEMENTS
from pytest_flashinfer_perf.gate.verdict import Judgement, Verdict
from pytest_flashinfer_perf.runs.row import Row

MOST_NAMED = 3  # tests; a longer command is written by its reader
PYTHONS = "flashinfer-perf ab --base BASE_PYTHON --head HEAD_PYTHON --"


def assumed_noise(judgement: Judgement) -> Iterator[str]:
    """Values that were assumed are as careful as the noisiest of a hundred cases: they hide what could be seen."""
    compared = [judged for judged in judgement.cases if judged.primary]
    assumed = [judged for judged in compared if judged.primary and judged.primary.noise.source == "assumed"]
    if assumed:
        sides = {"the baseline": [one.case.before for one in assumed], "this run": [one.case.after for one in assumed]}
        lacking = " and ".join(name for name, rows in sides.items() if any(map(_lacks_placements, rows)))
        yield (
            f"the noise of {len(assumed)} of {len(compared)} cases is assumed, not measured: fewer than "
            f"{FEWEST_PLACEMENTS} placements in rows of {lacking} (of an older version, a plain benchmark or a long "
            "call); measure again"
        )


def _lacks_placements(rows: Sequence[Row]) -> bool:
    return any(len(of_placements(row, "median")) < FEWEST_PLACEMENTS for row in rows)


def command(judgement: Judgement) -> str:
    """The `ab` command that would decide AMBIGUOUS cases; empty if there are none, or if this is such a comparison."""
    undecided = judgement.having(Verdict.AMBIGUOUS)
    if not undecided or judgement.rules.paired:
        return ""
    tests = list(dict.fromkeys(judged.case.rows[0].fullname for judged in undecided))
    named = shlex.join(tests) if len(tests) <= MOST_NAMED else "PYTEST_ARGS"
    return f"{PYTHONS} {named}"
