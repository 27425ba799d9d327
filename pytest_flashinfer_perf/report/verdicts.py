"""Compare the newest run with all earlier ones, by the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.gate import judge, thresholds, verdict, words
from pytest_flashinfer_perf.gate.runs import verify_once
from pytest_flashinfer_perf.runs.run_file import Run


@dataclass(frozen=True)
class ShownVerdict:
    verdict: str
    reason: str


def of(runs: Sequence[Run]) -> dict[str, ShownVerdict]:
    """Verdicts by case, as `compare` would give them with this folder's thresholds; empty for a single run."""
    if len(runs) < 2:
        return {}
    verify_once(runs)
    *base, head = runs
    rules = verdict.Rules(thresholds=thresholds.read(project_file.find(Path.cwd())))
    return {one.name: ShownVerdict(one.verdict.value, _reason(one)) for one in judge.judge(base, [head], rules).cases}


def _reason(one: verdict.Judged) -> str:
    """With the figures, where there was something to compare."""
    return f"{words.times(one)}, {words.changes(one)}: {one.sentence}" if one.compared else one.sentence
