"""What several runs of the same code say of the gate: python benchmarks/noise_evidence.py FOLDER...

Each folder holds files of pytest-benchmark, one a process. Prints how every ordered pair of them is judged, one run
against one, and for each case how far the processes lie apart beside what the gate took for it. `--against FOLDER
OTHER` judges each process of the one against each of the other, in both directions.
"""

import itertools
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.series import compared_by
from pytest_flashinfer_perf.gate.verdict import Judgement, Rules, Verdict


def pairs(folder: Path) -> list[Judgement]:
    """The judgements of all ordered pairs."""
    processes = read.read([folder])
    return [judge([base], [head], Rules()) for base, head in itertools.permutations(processes, 2)]


def summary(name: str, judged: Sequence[Judgement]) -> str:
    codes = Counter(judgement.exit_code for judgement in judged)
    verdicts = Counter(f"{case.verdict.value} ({case.reason})" for judgement in judged for case in judgement.cases)
    shown = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return f"{name}: {codes[1]} of {len(judged)} pairs exit 1; of {sum(verdicts.values())} verdicts {shown}"


def against(*folders: Path) -> Iterator[str]:
    one, other = (read.read([folder]) for folder in folders)
    for name, sides in (("in head", (one, other)), ("in the baseline", (other, one))):
        judged = [judge([base], [head], Rules()) for base, head in itertools.product(*sides)]
        yield summary(f"{folders[1].name} {name}", judged)
        yield from slower(judged)


def slower(judged: Sequence[Judgement]) -> Iterator[str]:
    counts = Counter(case.name for judgement in judged for case in judgement.having(Verdict.SLOWER))
    yield from (f"SLOWER {count} times: {name}" for name, count in counts.items())


def spread(values: Sequence[float]) -> float:
    return 100 * statistics.stdev(values) / statistics.fmean(values)


def rows(folder: Path, judged: Sequence[Judgement]) -> Iterator[tuple[str, float, str, float, float]]:
    """Per case: figure, sd between processes and the gate's noise in percent."""
    processes, first = read.read([folder]), judged[0]
    for case in first.cases:
        if case.primary is None:
            continue
        domain = case.primary.seen.domain
        figures = compared_by([run.by_case[case.name] for run in processes], domain)
        taken = [one.primary.noise.variance for j in judged for one in j.cases if one.name == case.name and one.primary]
        predicted, observed = 100 * math.sqrt(statistics.fmean(taken)), spread(figures)
        median = statistics.median(run.by_case[case.name].median for run in processes)
        yield case.name, median, domain, observed, predicted


def main() -> None:
    if sys.argv[1] == "--against":
        print("\n".join(against(*map(Path, sys.argv[2:]))))
        return
    for folder in map(Path, sys.argv[1:]):
        judged = pairs(folder)
        print(f"{summary(folder.name, judged)}\n\n| case | median | judged in | sd | taken for it | taken over sd |")
        print("|---|---|---|---|---|---|")
        for name, median, domain, observed, predicted in sorted(rows(folder, judged), key=lambda row: row[1]):
            ratio = f"{predicted / observed:.1f}" if observed else "-"
            print(f"| {name} | {1e6 * median:.4g} us | {domain} | {observed:.2f} % | {predicted:.2f} % | {ratio} |")
        print("\n".join(["", *slower(judged)]))


if __name__ == "__main__":
    main()
