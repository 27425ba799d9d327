"""Verdicts as sentences, for the terminal, Markdown and annotations."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf.gate import host, implementation
from pytest_flashinfer_perf.gate.comparable import changed_libraries
from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.figures import gigahertz, of_placements
from pytest_flashinfer_perf.gate.noise import FEWEST_PLACEMENTS
from pytest_flashinfer_perf.gate.verdict import (
    COULD_NOT_JUDGE,
    NOTHING_WORSE,
    WORSE,
    Judged,
    Judgement,
    Verdict,
)
from pytest_flashinfer_perf.rows.formatting import duration
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.rows.scatter import noise

CLOCK_MOVED = 0.02
LONGEST_NAME = 64
MOST = 100  # times as long; samples that scatter without end have bounds that no float holds
MEANS = {
    NOTHING_WORSE: "no slowdown was found",
    WORSE: "something got worse",
    COULD_NOT_JUDGE: "the comparison is incomplete",
}


def percent(log_ratio: float) -> str:
    if log_ratio > math.log(MOST):
        return f"over {100 * (MOST - 1):+d} %"
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def headline(judgement: Judgement) -> str:
    counted = [f"{judgement.counts[verdict]} {verdict.value}" for verdict in Verdict if judgement.counts[verdict]]
    return f"{', '.join(counted) or 'no case'}: {MEANS[judgement.exit_code]}{_open(judgement)}"


def _open(judgement: Judgement) -> str:
    ambiguous = judgement.counts[Verdict.AMBIGUOUS]
    return f", {ambiguous} too noisy to judge" if ambiguous else ""


def against(judgement: Judgement) -> str:
    return f"baseline {_named(judgement.base)}, this run {_named(judgement.head)}"


def _named(runs: Sequence[Run]) -> str:
    first, latest = runs[0], max(run.when for run in runs)
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    commit = f", commit {str(first.commit.id)[:10]}" if first.commit.id not in (None, "unversioned") else ""
    return f"{first.source}{others} ({len(runs)} process{'es' * (len(runs) > 1)}, {latest:%Y-%m-%d %H:%M} UTC{commit})"


def problems(judgement: Judgement) -> Iterator[str]:
    """What prevents the whole comparison."""
    yield from judgement.failures
    yield from judgement.refusals
    if judgement.nothing:
        yield "nothing was compared: no case is in both the baseline and this run, and can be judged"


def notes(judgement: Judgement) -> Iterator[str]:
    changed = changed_libraries(judgement.base, judgement.head)
    if changed:
        yield f"other libraries: {', '.join(changed)}"
    yield from moved(judgement.cases)
    yield from assumed_noise(judgement)
    for glob in judgement.rules.thresholds.idle(row for judged in judgement.cases for row in judged.case.rows[:1]):
        yield f"[thresholds] {glob!r} fits no case{_brackets(glob)}"
    for glob in judgement.rules.steps.without_match([step.model for step in judgement.steps]):
        yield f"[models] {glob!r} fits no model of which this run has a step"


def _brackets(glob: str) -> str:
    """For an id that was pasted: in a glob, brackets hold the letters of which one fits."""
    escaped = glob.replace("[", "[[]")
    return f": brackets are written as in {escaped!r}" if "[" in glob and "[[]" not in glob else ""


def times(judged: Judged) -> str:
    """GPU times before and after, or host times if they decided the verdict."""
    if judged.primary and judged.primary.seen.domain in host.QUANTITIES:
        seen = judged.primary.seen
        return f"{duration(statistics.median(seen.before))} -> {duration(statistics.median(seen.after))}"
    return f"{_median(judged.case.before)} -> {_median(judged.case.after)}"


def _median(rows: Sequence[Row]) -> str:
    return duration(statistics.median(row.median for row in rows)) if rows else "-"


def changes(judged: Judged) -> str:
    """The change in each domain; the domain that decides comes first."""
    return ", ".join(f"{effect.seen.domain} {percent(effect.change)}" for effect in judged.effects)


def sure(judged: Judged, effect: Effect) -> str:
    """A confidence bound of a found change, or both bounds if none was found."""
    if judged.verdict in (Verdict.SLOWER, Verdict.FASTER):
        return f"at least {percent(effect.bound(-effect.significant))} (95 % confidence)"
    return f"likely between {percent(effect.bound(-1))} and {percent(effect.bound(1))}"


def detectable(judged: Judged) -> str:
    """The smallest slowdown that this comparison would surely have found."""
    if judged.detectable is None:
        return ""
    detectable = percent(judged.detectable)
    return f"detects from {detectable}" if judged.detectable < math.log(2) else "detects only above +100 %"


def remarks(judged: Judged) -> Iterator[str]:
    """Notes beside a verdict: exceeded limits, another implementation, other kernels, another clock."""
    for broken in judged.broken:
        yield f"{'unknown' if broken.unknown else 'broken'}: {broken.sentence}"
    yield from implementation.remarks(judged.case)
    if judged.verdict in (Verdict.SLOWER, Verdict.FASTER, Verdict.AMBIGUOUS):
        yield from host.remarks(judged.case)
        yield from _kernels(judged)
        yield from _clock(judged)
    noisy = dict.fromkeys(noise(row.provenance.instrument) for row in judged.case.after if row.status == "noisy")
    yield from (f"noisy: {how}" for how in noisy)
    if judged.admitted:
        yield "allowed"


def _kernels(judged: Judged) -> Iterator[str]:
    sides = (judged.case.before, judged.case.after)
    before, after = (dict.fromkeys(row.trace.kernels for row in side) for side in sides)
    if before and after and before != after and None not in (*before, *after):
        gone, come = (", ".join(_short(name) for names in side for name in names or ()) for side in (before, after))
        yield f"now runs another kernel: {gone} -> {come}"


def _short(name: str) -> str:
    """A kernel's mangled name may have hundreds of letters, and its end tells it from its siblings."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}...{name[-LONGEST_NAME // 2 :]}"


def _clock(judged: Judged) -> Iterator[str]:
    sides = (judged.case.before, judged.case.after)
    before, after = ([ghz for row in side if (ghz := gigahertz(row))] for side in sides)
    if before and after:
        was, now = statistics.median(before), statistics.median(after)
        if abs(math.log(now / was)) > CLOCK_MOVED:
            yield f"SM clock {was:.2f} -> {now:.2f} GHz"


def sentence(judged: Judged) -> str:
    """One case for people: what, by how much, how sure, and what stands beside it."""
    parts = [judged.sentence]
    if judged.primary:
        parts = [f"{times(judged)}: {changes(judged)}", sure(judged, judged.primary), judged.sentence]
    return "; ".join([*parts, *remarks(judged)])


# How far a comparison can be trusted, and which command would decide AMBIGUOUS cases.

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


# Detect tests that are missing only because their path changed: the runs were started in different folders.

REMEDY = "start both in the same folder, or give both the same --rootdir"


def moved(cases: Iterable[Judged]) -> Iterator[str]:
    """A note if cases of the baseline are in this run under another folder."""
    listed = list(cases)
    gone = {_without_folder(one.name): one.name for one in listed if not one.case.head and one.case.base}
    come = {_without_folder(one.name): one.name for one in listed if not one.case.base}
    both = [test for test in gone if test is not None and test in come]
    if both:
        first = f"{gone[both[0]]} is {come[both[0]]} here"
        yield f"{len(both)} of the MISSING are here under the name of another folder ({first}): {REMEDY}"


def _without_folder(name: str) -> tuple[str, str] | None:
    """Nothing of a name that is not a test's: such cases are matched wherever they lie."""
    path, colons, test = name.partition("::")
    return (path.rpartition("/")[2], test) if colons else None
