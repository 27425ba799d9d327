"""The one place where reports meet the gate: the newest run, held against all the runs before it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.report.runs import Run

GATE = "pytest_flashinfer_perf.gate"


@dataclass(frozen=True)
class Judged:
    verdict: str
    reason: str


def of(runs: Sequence[Run]) -> dict[str, Judged]:
    """By case; nothing of one run, or where this installation has no gate."""
    if len(runs) < 2 or importlib.util.find_spec(GATE) is None:
        return {}
    gate = {name: importlib.import_module(f"{GATE}.{name}") for name in ("judge", "runs", "verdict", "words")}
    *base, head = (gate["runs"].parsed(run.document, run.name) for run in runs)
    judgement = gate["judge"].judge(base, [head], gate["verdict"].Rules())
    return {one.name: Judged(one.verdict.value, _reason(one, gate["words"])) for one in judgement.cases}


def _reason(one: Any, words: Any) -> str:
    """With the figures, where there was something to compare."""
    return f"{words.times(one)}, {words.changes(one)}: {one.sentence}" if one.compared else str(one.sentence)
