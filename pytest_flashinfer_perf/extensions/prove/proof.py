"""Count the gate's errors on one machine: false alarms on identical code, and missed slowdowns.

Every process is compared with every other one, as `compare` does it with one file a side.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.api import Row, Run, formatting, judge, match, series, words
from pytest_flashinfer_perf.api import verdict as core_verdict

MOST_SLOWER = 0.01  # of the verdicts on identical code
MOST_FAILED = 0.05  # of the comparisons of identical code: their exit code is 1
LEAST_DETECTED = 0.95  # of the extra work that is larger than the threshold
FEWEST = 3  # processes of each kind: the noise between processes needs as many


@dataclass(frozen=True)
class Frequency:
    """The number of events, and how many of the comparisons are independent since they share no process."""

    hits: int = 0
    tries: int = 0
    independent: int = 0

    def __add__(self, other: Frequency) -> Frequency:
        return Frequency(self.hits + other.hits, self.tries + other.tries, self.independent + other.independent)

    @property
    def share(self) -> float:
        return self.hits / self.tries if self.tries else 0.0

    @property
    def upper(self) -> float:
        """The upper limit of the true share, with 95 % confidence, if cases vary independently."""
        return series.at_most(self.share, self.independent)

    @property
    def lower(self) -> float:
        return 1 - series.at_most(1 - self.share, self.independent)


@dataclass(frozen=True)
class Proved:
    """One case: its row in every process, and its verdict in every comparison."""

    name: str
    plain: tuple[Row, ...]
    planted: tuple[Row, ...]
    identical: tuple[core_verdict.Judged, ...]
    extended: tuple[core_verdict.Judged, ...]

    def called(self, verdict: core_verdict.Verdict) -> Frequency:
        """How often identical code was given this verdict."""
        return _tally(self.identical, verdict, len(self.plain) // 2)

    @property
    def detected(self) -> Frequency:
        return _tally(self.extended, core_verdict.Verdict.SLOWER, min(len(self.plain), len(self.planted)))

    @property
    def median(self) -> float:
        return statistics.median(row.median for row in self.plain)

    @property
    def planted_change(self) -> float:
        """The logarithm of the change that was planted; zero where nothing was."""
        planted = statistics.median(row.parts.get("planted_us", 0.0) for row in self.planted)
        return math.log1p(planted * 1e-6 / self.median)

    @property
    def measured(self) -> float:
        return math.log(statistics.median(row.median for row in self.planted) / self.median)

    @property
    def threshold(self) -> float:
        """The threshold in force: the project's, or this machine's floor if that is higher."""
        held_to = [judged.threshold for judged in self.identical if judged.threshold is not None]
        return max(self.identical[0].limits.in_log(self.median), *held_to)

    @property
    def is_large_enough(self) -> bool:
        return self.planted_change > self.threshold

    @property
    def detectable(self) -> float:
        """The smallest slowdown that the gate claims to find in 95 of 100 such comparisons."""
        return statistics.median(judged.detectable for judged in self.extended if judged.detectable is not None)

    @property
    def observed(self) -> float:
        """The standard deviation between processes, of logarithms."""
        return series.deviation(self.plain, self.identical[0].effects[0].replicates.domain)

    @property
    def predicted(self) -> float:
        """The noise that the gate assumed."""
        return math.sqrt(statistics.fmean(judged.effects[0].noise.variance for judged in self.identical))


def _tally(judged: Sequence[core_verdict.Judged], verdict: core_verdict.Verdict, independent: int) -> Frequency:
    return Frequency(sum(one.verdict is verdict for one in judged), len(judged), independent)


@dataclass(frozen=True)
class Proof:
    """`failed` are comparisons of identical code with exit code 1, `troubles` what was not measured."""

    cases: tuple[Proved, ...]
    failed: Frequency
    troubles: tuple[str, ...] = ()

    def called(self, verdict: core_verdict.Verdict) -> Frequency:
        return sum((case.called(verdict) for case in self.cases), Frequency())

    @property
    def detected(self) -> Frequency:
        return sum((case.detected for case in self.cases if case.is_large_enough), Frequency())

    @property
    def holds(self) -> bool:
        errs = self.called(core_verdict.Verdict.SLOWER).share > MOST_SLOWER or self.failed.share > MOST_FAILED
        return not errs and (self.detected.share >= LEAST_DETECTED or not self.detected.tries)

    @property
    def exit_code(self) -> int:
        if not self.holds:
            return core_verdict.WORSE
        return core_verdict.COULD_NOT_JUDGE if self.troubles else core_verdict.NOTHING_WORSE


def prove(plain: Sequence[Run], planted: Sequence[Run], rules: core_verdict.Rules) -> Proof:
    identical = [judge([a], [b], rules) for a, b in itertools.permutations(plain, 2)]
    extended = [judge([a], [b], rules) for a, b in itertools.product(plain, planted)]
    same, more = _by_case(identical), _by_case(extended)
    cases = tuple(
        Proved(name, _rows(name, plain), _rows(name, planted), tuple(same[name]), tuple(more[name]))
        for name in plain[0].by_case
        if all(map(_is_judged, (*same[name], *more[name])))
    )
    failed = Frequency(sum(one.exit_code == core_verdict.WORSE for one in identical), len(identical), len(plain) // 2)
    return Proof(cases, failed, tuple(_troubles((*identical, *extended), cases)))


def _is_judged(one: core_verdict.Judged) -> bool:
    """What was measured under load is neither an error of the gate nor a miss."""
    return one.compared and one.reason is not match.Reason.LOADED


def _rows(name: str, runs: Sequence[Run]) -> tuple[Row, ...]:
    return tuple(run.by_case[name] for run in runs)


def _by_case(judgements: Sequence[core_verdict.Judgement]) -> dict[str, list[core_verdict.Judged]]:
    verdicts: dict[str, list[core_verdict.Judged]] = defaultdict(list)
    for judgement in judgements:
        for judged in judgement.cases:
            verdicts[judged.name].append(judged)
    return verdicts


def _troubles(judgements: Sequence[core_verdict.Judgement], cases: Sequence[Proved]) -> Iterator[str]:
    yield from dict.fromkeys(refusal for judgement in judgements for refusal in judgement.refusals)
    unjudged = [judged for judgement in judgements for judged in judgement.cases if not _is_judged(judged)]
    worst_last = sorted(unjudged, key=lambda judged: judged.verdict.rank, reverse=True)
    for name, judged in {judged.name: judged for judged in worst_last}.items():
        yield f"{name}: {judged.verdict.value}: {judged.sentence}"
    if not cases:
        yield "nothing was compared: no case is in every process, and can be judged"
    elif not any(case.is_large_enough for case in cases):
        yield "nothing was planted that is larger than its threshold: say a larger --share"


# A proof in a terminal.

COLUMNS = ("slower", "faster", "found", "planted", "detects", "sd", "assumed")
WIDTHS = (14, 9, 9, 11, 11, 9, 9)
MEANS = {
    core_verdict.NOTHING_WORSE: "the gate keeps its promise here",
    core_verdict.WORSE: "the gate does not keep its promise here",
    core_verdict.COULD_NOT_JUDGE: "the measurement is incomplete",
}


def _aligned(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))


def lines(proof: Proof) -> Iterator[str]:
    if proof.cases:
        yield _aligned(COLUMNS)
    for case in proof.cases:
        yield case.name
        yield _aligned(_cells(case))
    yield ""
    for sentence in sentences(proof):
        yield from formatting.wrapped(sentence)


def _cells(case: Proved) -> tuple[str, ...]:
    called = (_of(case.called(verdict)) for verdict in (core_verdict.Verdict.SLOWER, core_verdict.Verdict.FASTER))
    changes = (words.percent(case.measured), words.percent(case.detectable))
    noises = (f"{100 * case.observed:.2f} %", f"{100 * case.predicted:.2f} %")
    return (*called, _of(case.detected), *changes, *noises)


def _of(tally: Frequency, word: str = "/") -> str:
    return f"{tally.hits}{word}{tally.tries}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def sentences(proof: Proof) -> Iterator[str]:
    """The result in sentences: error rates, their confidence, and what was not measured."""
    if proof.cases:
        yield from _in_all(proof)
        yield from _sure(proof)
        yield from _notes(proof)
    yield from (f"NOT MEASURED: {trouble}" for trouble in proof.troubles)
    yield MEANS[proof.exit_code]


def _in_all(proof: Proof) -> Iterator[str]:
    slower, faster = (proof.called(verdict) for verdict in (core_verdict.Verdict.SLOWER, core_verdict.Verdict.FASTER))
    yield (
        f"identical code: SLOWER in {_of(slower, ' of ')} verdicts ({_percent(MOST_SLOWER)} allowed), "
        f"FASTER in {faster.hits}; exit code 1 in {_of(proof.failed, ' of ')} comparisons "
        f"({_percent(MOST_FAILED)} allowed)"
    )
    if proof.detected.tries:
        yield f"extra work: found in {_of(proof.detected, ' of ')} verdicts ({_percent(LEAST_DETECTED)} wanted)"


def _sure(proof: Proof) -> Iterator[str]:
    slower, detected = proof.called(core_verdict.Verdict.SLOWER), proof.detected
    bounds = [f"SLOWER below {_percent(slower.upper)}", f"exit code 1 below {_percent(proof.failed.upper)}"]
    bounds += [f"found above {_percent(detected.lower)}"] if detected.tries else []
    few = formatting.counted(proof.failed.independent, "comparison")
    yield f"only {few} of identical code share no process, which shows with 95 % confidence: {', '.join(bounds)}"


def _notes(proof: Proof) -> Iterator[str]:
    for case in proof.cases:
        if not case.planted_change:
            yield f"not planted, its time is not measured by perf in this process: {case.name}"
        elif not case.is_large_enough:
            planted, threshold = words.percent(case.planted_change), words.percent(case.threshold)
            yield f"not counted, {planted} was planted where {threshold} is allowed: {case.name}"
        for broken in case.identical[0].broken:
            yield f"broken whatever changed: {case.name}: {broken.sentence}"
