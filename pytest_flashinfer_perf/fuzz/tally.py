"""Count the examples of a search."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pytest_flashinfer_perf.fuzz.outcome import Outcome
from pytest_flashinfer_perf.spec.case import Case


@dataclass
class Tally:
    """How many examples were launched and right, and the reasons why others were skipped or refused.

    `drawn` counts for each field how often each value was launched and checked.
    """

    launched: int = 0
    checked: int = 0
    sampled: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    drawn: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, case: Case, outcome: Outcome) -> None:
        if outcome.kind == "skipped":
            self.skipped[outcome.sentence] += 1
            return
        self.launched += 1
        if outcome.kind == "refused":
            self.refused[outcome.sentence] += 1
        if outcome.kind == "right":
            self.checked += 1
            self.sampled += outcome.sampled
            for name, value in case.params.as_dict().items():
                self.drawn[name][str(value)] += 1

    def as_json(self, seconds: float) -> dict[str, Any]:
        counted = {name: dict(getattr(self, name).most_common()) for name in ("skipped", "refused", "quarantined")}
        drawn = {name: dict(values.most_common()) for name, values in self.drawn.items()}
        numbers = {name: getattr(self, name) for name in ("launched", "checked", "sampled")}
        rate = {"seconds": round(seconds, 3), "examples_per_minute": round(60 * self.launched / seconds, 1)}
        return {**numbers, **rate, **counted, "drawn": drawn}
