"""The comparison in a terminal, as plain text of its width, the worst first."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.effects import Domain, Effect
from pytest_flashinfer_perf.gate.match import RunRow
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.rows.formatting import indented, width, wrapped


def lines(judgement: Judgement) -> Iterator[str]:
    for one in judgement.sums:
        yield from wrapped(one.line) if one.leads else ()
    yield from wrapped(words.against(judgement))
    for note in words.notes(judgement):
        yield from wrapped(note)
    for problem in words.problems(judgement):
        yield from wrapped(f"REFUSED: {problem}")
    for verdict in Verdict:
        of_verdict = judgement.having(verdict)
        if of_verdict:
            yield ""
            yield f"{verdict.value} ({len(of_verdict)})"
        yield from _cases(of_verdict)
    yield ""
    for one in judgement.sums:
        yield from () if one.leads else wrapped(one.line)
    command = words.command(judgement)
    if command:
        yield "to decide what is AMBIGUOUS, measure both versions in turns:"
        yield f"  {command}"
    yield from wrapped(words.headline(judgement))


def _cases(of_verdict: Sequence[Judged]) -> Iterator[str]:
    """A reason that many cases share is written once."""
    for judged in of_verdict:
        if judged.primary or judged.broken:
            yield from _brief(judged) if judged.verdict is Verdict.SAME and not judged.broken else _case(judged)
    others: dict[str, list[str]] = {}
    for judged in of_verdict:
        if not (judged.primary or judged.broken):
            others.setdefault("; ".join([_why(judged), *words.remarks(judged)]), []).append(judged.name)
    for why, names in others.items():
        yield from (f"  {name}" for name in names)
        yield from indented(why, 6)


def _why(judged: Judged) -> str:
    return f"{judged.reason}: {judged.sentence}"


def _brief(judged: Judged) -> Iterator[str]:
    seen = f"{words.percent(judged.primary.change)}, {words.detectable(judged)}" if judged.primary else ""
    name = f"  {judged.name}"
    if len(name) + len(seen) + 2 > width():
        yield name
        name = ""
    yield f"{name}{seen:>{width() - len(name)}}"


def _case(judged: Judged) -> Iterator[str]:
    yield f"  {judged.name}"
    if judged.primary:
        yield from indented(f"{words.times(judged)}: {words.changes(judged)}", 6)
        yield from indented(f"{words.sure(judged, judged.primary)}, {words.detectable(judged)}", 6)
    for line in (_why(judged), *words.remarks(judged)):
        yield from indented(line, 6)


# The output of `--explain`: every number that led to a verdict.


def explanation(judgement: Judgement, glob: str) -> Iterator[str]:
    """The numbers of all cases that the glob matches or whose names contain it."""
    fitting = [judged for judged in judgement.cases if fnmatch.fnmatchcase(judged.name, glob) or glob in judged.name]
    if not fitting:
        yield f"--explain {glob}: no case of this comparison is called that"
    for judged in fitting:
        yield from _explained(judged)


def _explained(judged: Judged) -> Iterator[str]:
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
    scale, unit = (1.0, "cycles") if seen.domain == Domain.CYCLES else (1e6, "us")
    yield f"  {seen.domain}{', which it is judged by' if judged_by else ''}"
    before, after = ([f"{value * scale:.6g}" for value in side] for side in (seen.before, seen.after))
    yield f"    {unit} before {' '.join(before)}, after {' '.join(after)}{', in pairs' if seen.paired else ''}"
    yield f"    change {words.percent(effect.change)} +- {100 * effect.error:.3f} %"
    yield f"    between processes {100 * noise.sd:.3f} %, {noise.source}, {noise.df:.1f} degrees of freedom"
    yield f"    95 % bounds {words.percent(effect.bound(-1))} and {words.percent(effect.bound(1))}"
    found = {1: "significantly slower", -1: "significantly faster", 0: "not significant"}[effect.significant]
    yield f"    p slower {effect.p(1):.3g}, p faster {effect.p(-1):.3g}: {found} among all cases"
