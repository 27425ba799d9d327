"""How often the gate is wrong about functions that have two speeds: python tests/acceptance/two_speeds.py

As a product of matrices on two cores, which took half as long again in 3 of 22 processes. A run has two such cases by
the host's clock, and processes differ by a few per cent besides. No GPU, eight minutes on one core.
"""

import argparse
import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.gate import confirmation
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Rules, Verdict
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import Run

CASES = ("matmul", "sort")
SLOW = 1.5  # times as long
AROUND = (-1.2, -0.6, 0.0, 0.6, 1.2)  # placements, in standard deviations


@dataclass
class Machine:
    """Processes of which this share is slow; the others and these vary by `sd`."""

    rng: random.Random
    slow: float
    sd: float = 0.03

    def run(self, planted: float = 0.0, cases: Sequence[str] = CASES) -> Run:
        rows = [self._row(case, 2e-3 * (1 + planted)) for case in cases]
        return run_file.parse({"benchmarks": rows}, f"{self.rng.random()}.json")

    def _row(self, case: str, usual: float) -> dict[str, Any]:
        median = usual * (SLOW if self.rng.random() < self.slow else 1.0) * math.exp(self.rng.gauss(0.0, self.sd))
        placements = [{"median": median * (1 + 0.01 * z), "cycles": None} for z in AROUND]
        info = {"case": case, "status": "ok", "instrument": "wall", "cold_l2": "rotate", "placements": placements}
        stats = {"median": median, "mean": median, "stddev": 0.01 * median, "iqr": 0.0135 * median, "rounds": 50}
        return {"name": case, "fullname": f"t.py::{case}", "stats": stats, "extra_info": info}


def gate(machine: Machine, planted: float, processes: int = 1) -> Judgement:
    """As a run with `--perf-gate` and a baseline of so many processes; suspects are measured again."""
    base = [machine.run() for _ in range(processes)]
    judgement = judge(base, [machine.run(planted)], Rules())

    def measure(_nth: int, suspects: Sequence[Judged]) -> Judgement:
        return judge(base, [machine.run(planted, [suspect.name for suspect in suspects])], Rules())

    return confirmation.confirm(judgement, confirmation.remeasure(judgement.having(Verdict.SLOWER), measure))


def five_a_side(machine: Machine, planted: float) -> Judgement:
    return judge([machine.run() for _ in range(5)], [machine.run(planted) for _ in range(5)], Rules())


def ab(machine: Machine, planted: float) -> Judgement:
    def measure(_nth: int, wanted: frozenset[str] | None) -> tuple[Run, Run]:
        cases = [case for case in CASES if wanted is None or case in wanted]
        return machine.run(cases=cases), machine.run(planted, cases)

    from pytest_flashinfer_perf.extensions.bisect.pairs import PairSchedule  # the gate is tested without extensions

    return PairSchedule().follow(measure, Rules(paired=True))


Compare = Callable[[Machine, float], Judgement]
WAYS: dict[str, Compare] = {
    "`--perf-gate`": gate,
    "`--perf-gate`, a baseline of five": functools.partial(gate, processes=5),
    "`compare`, five a side": five_a_side,
    "`ab`": ab,
}


@dataclass(frozen=True)
class Rates:
    """Of so many runs those that exit with 1, and the verdicts of their cases."""

    runs: int
    failed: int
    verdicts: Counter[Verdict]

    @property
    def slower(self) -> float:
        return self.verdicts[Verdict.SLOWER] / self.verdicts.total()


def rates(compare: Compare, slow: float, planted: float, runs: int, seed: int = 1) -> Rates:
    rng = random.Random(seed)
    judged = [compare(Machine(rng, slow), planted) for _ in range(runs)]
    verdicts = Counter(case.verdict for judgement in judged for case in judgement.cases)
    return Rates(runs, sum(judgement.exit_code == 1 for judgement in judged), verdicts)


def lines(runs: int) -> Iterator[str]:
    yield "| | slow processes | identical code: runs that exit 1 | cases SLOWER | +100 %: cases SLOWER |"
    yield "|---|---|---|---|---|"
    for way, compare in WAYS.items():
        for slow in (0.0, 0.14, 0.3, 0.5, 0.8):
            identical, planted = (rates(compare, slow, share, runs) for share in (0.0, 1.0))
            shares = f"{identical.failed} of {runs} | {identical.slower:.2%} | {planted.slower:.1%}"
            yield f"| {way} | {slow:.0%} | {shares} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    for line in lines(parser.parse_args().runs):
        print(line, flush=True)


if __name__ == "__main__":
    main()
