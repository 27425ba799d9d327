"""Verdicts as sentences, and all of them in a terminal.

First what is said of a case, then the remarks beside its verdict, then what is said of the whole comparison.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf.gate.effects import Domain, Effect
from pytest_flashinfer_perf.gate.figures import placement_figures, positive
from pytest_flashinfer_perf.gate.match import ComparedCase, Reason, changed_libraries
from pytest_flashinfer_perf.gate.noise import FEWEST_PLACEMENTS
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, WORSE, Judged, Judgement, Verdict
from pytest_flashinfer_perf.machine import implementations
from pytest_flashinfer_perf.machine.implementations import UNKNOWN
from pytest_flashinfer_perf.rows.formatting import counted, duration, indented, shortened, width, wrapped
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.rows.scatter import noise

MOST = 100  # times as long; samples that scatter without end have bounds that no float holds


def percent(log_ratio: float) -> str:
    if log_ratio > math.log(MOST):
        return f"over {100 * (MOST - 1):+d} %"
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def times(judged: Judged) -> str:
    """The times of calls before and after, or the figures of another quantity if these decided the verdict."""
    sides: Sequence[Sequence[float]] = [
        [row.median for row in rows] for rows in (judged.case.before, judged.case.after)
    ]
    if judged.primary and not isinstance(judged.primary.replicates.domain, Domain):
        sides = (judged.primary.replicates.before, judged.primary.replicates.after)
    return " -> ".join(duration(statistics.median(side)) if side else "-" for side in sides)


def changes(judged: Judged) -> str:
    """The change in each domain; the domain that decides comes first."""
    return ", ".join(f"{effect.replicates.domain} {percent(effect.change)}" for effect in judged.effects)


def confidence(judged: Judged, effect: Effect) -> str:
    """Give the confidence bound of a change, or both bounds if there is no significant one."""
    if judged.verdict in (Verdict.SLOWER, Verdict.FASTER):
        return f"at least {percent(effect.bound(-effect.significant))} (95 % confidence)"
    return f"likely between {percent(effect.bound(-1))} and {percent(effect.bound(1))}"


def detectable(judged: Judged) -> str:
    """The smallest slowdown that this comparison would surely have found."""
    if judged.detectable is None or judged.reason is Reason.LOADED:
        return ""
    is_bounded = judged.detectable < math.log(2)
    return f"detects from {percent(judged.detectable)}" if is_bounded else "sure to find only changes above +100 %"


# Remarks beside a verdict: what else changed with the case.

CLOCK_MOVED = 0.02


def remarks(judged: Judged) -> Iterator[str]:
    """Exceeded limits, another implementation, what extensions remark, other kernels, another clock."""
    for broken in judged.broken:
        yield f"{'unknown' if broken.unknown else 'broken'}: {broken.sentence}"
    yield from _implementation(judged.case)
    yield from _gaps(judged)
    if judged.verdict in (Verdict.SLOWER, Verdict.FASTER, Verdict.AMBIGUOUS):
        yield from judged.remarks
        yield from _kernels(judged.case)
        yield from _clock(judged.case)
    noisy = [row for row in judged.case.after if row.status == "noisy"]
    yield from dict.fromkeys(f"noisy: {noise(row.provenance.instrument, row.execution.contention)}" for row in noisy)
    if judged.case.left_out:
        yield f"{counted(judged.case.left_out, 'measurement')} left out: others used this machine"
    if judged.admitted:
        yield "allowed"


def _gaps(judged: Judged) -> Iterator[str]:
    """Name a change of gaps that alone is beyond the threshold, and whether the host makes them."""
    effect = judged.effect_in(Domain.GAPS)
    if effect is None or judged.threshold is None or abs(effect.change) <= judged.threshold:
        return
    sides = (judged.case.before, judged.case.after)
    was, now = (duration(statistics.median(row.timed.gap or 0.0 for row in side)) for side in sides)
    is_hosts = any(row.timed.gap_of == "host" for row in judged.case.rows)
    yield f"gaps between kernels {was} -> {now}{': the host launches them one by one' if is_hosts else ''}"


def _implementation(case: ComparedCase) -> Iterator[str]:
    """Whether FlashInfer ran another of its implementations, as CuTe DSL's norms or the older ones in CUDA, and why."""
    before, after = _implementations(case.before), _implementations(case.after)
    gone = [name for name in before or () if name not in (after or ())]
    come = [name for name in after or () if name not in (before or ())]
    if before is None or after is None or not (gone or come) or UNKNOWN in (*gone, *come):
        return
    now = f"now {'' if gone else 'also '}the {' and '.join(come)}" if come else f"no longer the {' and '.join(gone)}"
    earlier = (f"in the baseline {why}" for why in _lacking(case.before, come))
    reasons = ", ".join([*_lacking(case.after, gone), *earlier, *_switched(case)])
    yield f"{now} implementation: {reasons}" if reasons else f"{now} implementation"


def _implementations(rows: Sequence[Row]) -> tuple[str, ...] | None:
    """Name the implementations that the rows of one side ran; None if a row does not say."""
    kernel_lists = [row.trace.kernels for row in rows]
    if not kernel_lists or None in kernel_lists:
        return None
    return implementations.of_kernels(kernel for kernels in kernel_lists for kernel in kernels or ())


def _lacking(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """The packages of these implementations that the side of these rows lacks."""
    needed = [implementations.PACKAGE[name] for name in names if name in implementations.PACKAGE]
    unmet = {package: why for row in rows for package, why in (row.library.unmet or {}).items()}
    for package, why in unmet.items():
        if any(implementations.is_of(package, name) for name in needed):
            yield f"{package} {why}"


def _switched(case: ComparedCase) -> Iterator[str]:
    before, after = (
        {name: value for row in rows for name, value in (row.library.switches or {}).items()}
        for rows in (case.before, case.after)
    )
    yield from (f"{name}={value} is set" for name, value in after.items() if before.get(name) != value)
    yield from (f"{name} is no longer set" for name in before if name not in after)


def _kernels(case: ComparedCase) -> Iterator[str]:
    before, after = (dict.fromkeys(row.trace.kernels for row in side) for side in (case.before, case.after))
    if before and after and before != after and None not in (*before, *after):
        yield another_kernel(*((shortened(name) for names in side for name in names or ()) for side in (before, after)))


def _clock(case: ComparedCase) -> Iterator[str]:
    sides = (case.before, case.after)
    before, after = ([ghz for row in side if (ghz := positive(row.clocks.sm_ghz))] for side in sides)
    if before and after:
        yield from clock_moved(statistics.median(before), statistics.median(after))


def another_kernel(gone: Iterable[str], come: Iterable[str]) -> str:
    return f"now runs another kernel: {', '.join(gone)} -> {', '.join(come)}"


def clock_moved(was: float, now: float) -> Iterator[str]:
    """A sentence where the SM clock is another one by more than it varies."""
    if abs(math.log(now / was)) > CLOCK_MOVED:
        yield f"SM clock {was:.2f} -> {now:.2f} GHz"


# The whole comparison: its result, its two sides, and what prevents or limits it.

MEANS = {
    NOTHING_WORSE: "no slowdown was found",
    WORSE: "something got worse",
    COULD_NOT_JUDGE: "the comparison is incomplete",
}
NOTHING = "no case could be judged, which is no pass"


def headline(judgement: Judgement) -> str:
    """The last line: how many cases could be judged, the verdicts, and what they mean together."""
    counts = judgement.counts
    verdicts = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])
    decided, expected = judgement.decided, len(judgement.cases) - counts[Verdict.NEW]
    judged = f"{decided} of {expected} judged, " if decided < expected else ""
    nothing = expected and not decided and judgement.exit_code == COULD_NOT_JUDGE
    return f"{judged}{verdicts or 'no case'}: {NOTHING if nothing else MEANS[judgement.exit_code]}"


def against(judgement: Judgement) -> str:
    return f"baseline {_named(judgement.base)}, this run {_named(judgement.head)}"


def _named(runs: Sequence[Run]) -> str:
    first, latest = runs[0], max(run.when for run in runs)
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    commit = f", commit {str(first.commit.id)[:10]}" if first.commit.id else ""
    return f"{first.source}{others} ({len(runs)} process{'es' * (len(runs) > 1)}, {latest:%Y-%m-%d %H:%M} UTC{commit})"


def problems(judgement: Judgement) -> Iterator[str]:
    """The problems that prevent the whole comparison."""
    yield from judgement.failures
    yield from judgement.refusals
    if judgement.nothing:
        yield "nothing was compared: no case is in both the baseline and this run, and can be judged"


def notes(judgement: Judgement) -> Iterator[str]:
    """What a reader should know of the whole comparison, though it prevents nothing."""
    changed = changed_libraries(judgement.base, judgement.head)
    if changed:
        yield f"other libraries: {', '.join(changed)}"
    yield from assumed_noise(judgement)
    for glob in judgement.rules.thresholds.idle(row for judged in judgement.cases for row in judged.case.rows[:1]):
        yield f"[thresholds] {glob!r} fits no case"
    yield from judgement.notes


def assumed_noise(judgement: Judgement) -> Iterator[str]:
    """Values that were assumed are as careful as the noisiest of a hundred cases: they hide what could be seen."""
    compared = [judged for judged in judgement.cases if judged.primary]
    assumed = [judged for judged in compared if judged.primary and judged.primary.noise.source == "assumed"]
    if assumed:
        sides = {"the baseline": [one.case.before for one in assumed], "this run": [one.case.after for one in assumed]}
        lacking = " and ".join(name for name, rows in sides.items() if any(map(_lacks_placements, rows)))
        yield (
            f"the noise of {len(assumed)} of {len(compared)} cases is assumed, not measured: fewer than "
            f"{FEWEST_PLACEMENTS} placements in rows of {lacking} (a plain benchmark or a "
            "long call); measure again"
        )


def _lacks_placements(rows: Sequence[Row]) -> bool:
    return any(len(placement_figures(row, "median")) < FEWEST_PLACEMENTS for row in rows)


# All of it in a terminal, as plain text of its width, the worst first.


def lines(judgement: Judgement) -> Iterator[str]:
    for one in judgement.sums:
        yield from wrapped(one.line) if one.leads else ()
    yield from wrapped(against(judgement))
    for note in notes(judgement):
        yield from wrapped(note)
    for problem in problems(judgement):
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
    yield from wrapped(headline(judgement))


def _cases(of_verdict: Sequence[Judged]) -> Iterator[str]:
    """A reason that many cases share is written once."""
    for judged in of_verdict:
        if judged.primary or judged.broken:
            yield from _brief(judged) if judged.verdict is Verdict.SAME and not judged.broken else _case(judged)
    others: dict[str, list[str]] = {}
    for judged in of_verdict:
        if not (judged.primary or judged.broken):
            others.setdefault("; ".join([_why(judged), *remarks(judged)]), []).append(judged.name)
    for why, names in others.items():
        yield from (f"  {name}" for name in names)
        yield from indented(why, 6)


def _why(judged: Judged) -> str:
    return f"{judged.reason}: {judged.sentence}"


def _brief(judged: Judged) -> Iterator[str]:
    change = f"{percent(judged.primary.change)}, {detectable(judged)}" if judged.primary else ""
    name = f"  {judged.name}"
    if len(name) + len(change) + 2 > width():
        yield name
        name = ""
    yield f"{name}{change:>{width() - len(name)}}"


def _case(judged: Judged) -> Iterator[str]:
    yield f"  {judged.name}"
    if judged.primary:
        yield from indented(f"{times(judged)}: {changes(judged)}", 6)
        yield from indented(f"{confidence(judged, judged.primary)}, {detectable(judged)}", 6)
    for line in (_why(judged), *remarks(judged)):
        yield from indented(line, 6)
