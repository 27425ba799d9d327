"""How often the gate errs in cases that several processes time together: python benchmarks/ranks_errors.py DIR

how="benchmarks/ranks_errors.txt --perf-no-multicast --benchmark-max-time=0.5"
pytest $how --benchmark-json=DIR/plain-1.json                        # eight such files
PLANTED_FROM=DIR/plain-1.json PYTHONPATH=benchmarks pytest -p planted_on_ranks $how --benchmark-json=DIR/planted-1.json

Two sessions may share a pair of GPUs, each with a TMPDIR of its own: `-p ranks_in_turn`, with RANKS_TURN=FILE in both.

One run against one, as `flashinfer-perf compare` does without a settings file: each of the plain runs with each other
one, in both orders, and each with each planted one.
"""

import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Judgement, Rules
from pytest_flashinfer_perf.rows.run_file import Run

HEADINGS = ("case", "us", "sd between runs", "identical code", "planted", "with the copy")
LONG_S = 10e-6


def verdicts(judgements: Iterable[Judgement]) -> dict[str, Counter[str]]:
    """How often each case got which verdict."""
    counted: dict[str, Counter[str]] = {}
    for judgement in judgements:
        for case in judgement.cases:
            counted.setdefault(case.case.name, Counter())[case.verdict.value] += 1
    return counted


def medians(runs: Sequence[Run], name: str) -> list[float]:
    return [run.by_case[name].median for run in runs]


def shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items(), key=lambda one: -one[1]))


def lines(plain: Sequence[Run], planted: Sequence[Run]) -> Iterator[str]:
    identical = [judge([a], [b], Rules()) for a, b in itertools.permutations(plain, 2)]
    slower = [judge([a], [b], Rules()) for a, b in itertools.product(plain, planted)]
    same, more = verdicts(identical), verdicts(slower)
    yield f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}"
    for name, counts in same.items():
        times = medians(plain, name)
        middle, sd = statistics.median(times), statistics.stdev(map(math.log, times))
        grew = statistics.median(medians(planted, name)) / middle - 1 if planted else 0.0
        facts = (f"{1e6 * middle:.1f}", f"{sd:.2%}", shown(counts), f"{grew:+.1%}", shown(more.get(name, {})))
        yield f"| {name} | {' | '.join(facts)} |"
    yield f"\nexit codes of identical code: {shown(Counter(str(one.exit_code) for one in identical))}"
    hits = [more[name]["SLOWER"] for name in more if statistics.median(medians(plain, name)) > LONG_S]
    tries = len(slower) * len(hits)
    yield f"planted, above {1e6 * LONG_S:g} us: {sum(hits)} of {tries} ({sum(hits) / max(1, tries):.1%})"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    files = [sorted(Path(sys.argv[1]).glob(f"{side}-*.json")) for side in ("plain", "planted")]
    print("\n".join(lines(*(read.read(side) if side else [] for side in files))))


if __name__ == "__main__":
    main()
