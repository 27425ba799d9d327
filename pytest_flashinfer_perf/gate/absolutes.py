"""Gates without a baseline: a rate that must be reached, another backend that must not be beaten by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import effects
from pytest_flashinfer_perf.gate.effects import Replicates
from pytest_flashinfer_perf.gate.sides import ComparedCase
from pytest_flashinfer_perf.gate.thresholds import Rival, Threshold
from pytest_flashinfer_perf.runs.row import Row


@dataclass(frozen=True)
class Broken:
    """What was asked and not reached; `unknown` when the rows do not say."""

    sentence: str
    unknown: bool = False


def broken(case: ComparedCase, asked: Threshold) -> list[Broken]:
    if not case.head:
        return []
    return [*_rates(case, asked), *(_rival(case, asked.max_vs_backend) if asked.max_vs_backend else ())]


def _rates(case: ComparedCase, asked: Threshold) -> Iterator[Broken]:
    for field in ("tflops", "sol_pct"):
        least = getattr(asked, f"min_{field}")
        reached = [getattr(row.throughput, field) for row in case.after]
        known = [float(value) for value in reached if value is not None]
        if least is None:
            continue
        if len(known) < len(reached):
            yield Broken(f"min_{field} = {least:g}: its rows have no {field}", unknown=True)
        elif statistics.median(known) < least:
            yield Broken(f"min_{field} = {least:g}: it reaches {statistics.median(known):.4g}")


def _rival(case: ComparedCase, rival: Rival) -> Iterator[Broken]:
    """In the same processes; only a ratio that is surely above the limit breaks it."""
    asked = f"max_vs_backend = {rival.ratio:g} of {rival.backend}"
    if case.after[0].identity.backend == rival.backend:
        return
    pairs = [(other, row) for run, row in case.head if (other := _of_backend(rival.backend, row, run.rows))]
    if not pairs:
        yield Broken(f"{asked}: this run has no case of that backend with its shape", unknown=True)
        return
    [effect] = effects.effects([_beside(pairs)], [None])
    if effect.bound(-1) > math.log(rival.ratio):
        yield Broken(f"{asked}: it takes {math.exp(effect.change):.3f} of its {effect.seen.domain}")


def _of_backend(backend: str, row: Row, rows: Iterable[Row]) -> Row | None:
    others = (other for other in rows if other.identity.backend == backend)
    return next((other for other in others if _shape(other) == _shape(row)), None)


def _shape(row: Row) -> tuple[str | None, ...]:
    return row.identity.routine, row.identity.shape, row.identity.device


def _beside(pairs: Sequence[tuple[Row, Row]]) -> Replicates:
    return effects.replicates([rival for rival, _ in pairs], [row for _, row in pairs], paired=True)[0]
