"""The output of `--explain`: every number that led to a verdict."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.sides import RunRow
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement

SCALE = {"time": (1e6, "us"), "cycles": (1.0, "cycles"), "host": (1e6, "us"), "plan": (1e6, "us")}


def lines(judgement: Judgement, glob: str) -> Iterator[str]:
    """The numbers of all cases that the glob matches or whose names contain it."""
    fitting = [judged for judged in judgement.cases if fnmatch.fnmatchcase(judged.name, glob) or glob in judged.name]
    if not fitting:
        yield f"--explain {glob}: no case of this comparison is called that"
    for judged in fitting:
        yield from _case(judged)


def _case(judged: Judged) -> Iterator[str]:
    yield f"{judged.name}: {judged.verdict.value} ({judged.reason})"
    yield f"  {judged.sentence}"
    yield from (f"  {remark}" for remark in words.remarks(judged))
    yield from _processes("baseline", judged.case.base)
    yield from _processes("this run", judged.case.head)
    for place, effect in enumerate(judged.effects):
        yield from _effect(effect, judged_by=place == 0)
    yield f"  asked: slower {100 * judged.asked.slower:g} %, floor_us {judged.asked.floor_us:g}"
    if judged.threshold is not None and judged.detectable is not None:
        threshold, detectable = words.percent(judged.threshold), words.percent(judged.detectable)
        yield f"  threshold {threshold}, smallest slowdown surely found {detectable}"


def _processes(side: str, seen: Sequence[RunRow]) -> Iterator[str]:
    for run, row in seen:
        clocks = row.clocks
        cycles = f", {clocks.cycles:.0f} cycles at {clocks.sm_ghz or 0:.3f} GHz" if clocks.cycles else ""
        spread = f"spread {100 * (row.spread or 0.0):.2f} % over {row.stats.rounds} samples"
        how = f"{row.provenance.instrument}, {row.provenance.cold_l2}, {row.status}"
        yield f"  {side}: {row.median * 1e6:.4g} us, {spread}{cycles}; {how}; {run.source}"


def _effect(effect: Effect, *, judged_by: bool) -> Iterator[str]:
    seen, noise = effect.seen, effect.noise
    scale, unit = SCALE[seen.domain]
    yield f"  {seen.domain}{', which it is judged by' if judged_by else ''}"
    before, after = ([f"{value * scale:.6g}" for value in side] for side in (seen.before, seen.after))
    yield f"    {unit} before {' '.join(before)}, after {' '.join(after)}{', in pairs' if seen.paired else ''}"
    yield f"    change {words.percent(effect.change)} +- {100 * effect.error:.3f} %"
    yield f"    between processes {100 * noise.sd:.3f} %, {noise.source}, {noise.df:.1f} degrees of freedom"
    yield f"    95 % bounds {words.percent(effect.bound(-1))} and {words.percent(effect.bound(1))}"
    found = {1: "significantly slower", -1: "significantly faster", 0: "not significant"}[effect.significant]
    yield f"    p slower {effect.p(1):.3g}, p faster {effect.p(-1):.3g}: {found} among all cases"
