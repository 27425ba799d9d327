"""Measure pairs of processes until each verdict is certain, and measure suspects again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pytest_flashinfer_perf.api import Run, effects, judge, match, verdict
from pytest_flashinfer_perf.gate import confirmation
from pytest_flashinfer_perf.gate.confirmation import Remeasured, confirm

FEWEST = 3  # pairs before anything is certain
CERTAIN = 0.001  # the risk at which SAME needs no more pairs
LOOKS = 10  # early verdicts are made at a tenth of the error rate: each look is a chance to err
HELPED_BY_MORE = (match.Reason.NOT_SIGNIFICANT, match.Reason.CANNOT_SEE, match.Reason.LOADED, match.Reason.FEW_CALLS)

# Measures the n-th pair, of these cases or of all, and gives base and head.
MeasurePair = Callable[[int, "frozenset[str] | None"], tuple[Run, Run]]


@dataclass
class PairSchedule:
    """The number of pairs: `pairs` unless all verdicts are certain earlier, up to `most` for AMBIGUOUS cases."""

    pairs: int = 5
    most: int = 10
    suspected: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.most = max(self.pairs, self.most)

    @property
    def fewest(self) -> int:
        return min(FEWEST, self.pairs)

    def follow(
        self, measure: MeasurePair, rules: verdict.Rules, more: Callable[[], bool] = lambda: True
    ) -> verdict.Judgement:
        """`more` says whether there is time for another pair."""
        base: list[Run] = []
        head: list[Run] = []
        wanted: frozenset[str] | None = None
        while wanted is None or wanted:
            before, after = measure(len(base), wanted)
            base.append(before)
            head.append(after)
            judgement = judge(base, head, rules)
            wanted = self.wanted(judgement) if more() else frozenset()
        return confirm(judgement, self._changes_since_suspected(judgement))

    def wanted(self, judgement: verdict.Judgement) -> frozenset[str] | None:
        """The cases whose next pair is worth its time; None for all."""
        done = len(judgement.base)
        if done < self.fewest:
            return None
        compared = [judged for judged in judgement.cases if judged.compared]
        if done < self.pairs:
            undecided = frozenset(judged.name for judged in compared if not _certain(judged, len(compared)))
            if undecided:
                return undecided
        return frozenset(judged.name for judged in compared if self._worth_more(judged))

    def _worth_more(self, judged: verdict.Judged) -> bool:
        done = len(judged.case.base)  # and `left_out` more that do not count
        measured = done + judged.case.left_out
        if judged.verdict is verdict.Verdict.SLOWER:
            first = self.suspected.setdefault(judged.name, done)
            more = confirmation.processes(judged, self._since_suspected(judged))
            return done < first + more and measured < self.most + more
        return judged.reason in HELPED_BY_MORE and measured < self.most

    def _changes_since_suspected(self, judgement: verdict.Judgement) -> dict[str, Remeasured]:
        """The change in the pairs that came after the suspicion."""
        return {judged.name: self._since_suspected(judged) for judged in judgement.having(verdict.Verdict.SLOWER)}

    def _since_suspected(self, judged: verdict.Judged) -> Remeasured:
        changes = judged.effects[0].replicates.changes
        since = changes[self.suspected.get(judged.name, len(changes)) :]
        return Remeasured(since, "others used this machine" if judged.case.left_out else "")


def _certain(judged: verdict.Judged, cases: int) -> bool:
    """Whether the verdict is so sure that no other case, and no further pair, is likely to change it."""
    [primary, *_] = judged.effects
    if judged.verdict in (verdict.Verdict.SLOWER, verdict.Verdict.FASTER):
        q = effects.Q_SLOWER if judged.verdict is verdict.Verdict.SLOWER else effects.Q_FASTER
        return primary.p(primary.significant) <= q / cases / LOOKS
    if judged.verdict is not verdict.Verdict.SAME or judged.threshold is None:
        return False
    held = ((primary, judged.threshold), *judged.other_thresholds)
    return all(max(one.bound(1, CERTAIN), -one.bound(-1, CERTAIN)) < threshold for one, threshold in held)
