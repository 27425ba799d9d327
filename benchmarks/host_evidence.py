"""What runs say of the gate's verdicts on host time: python benchmarks/host_evidence.py PLAIN [PLANTED]

PLAIN is a folder with files of several processes of the same code, PLANTED one with more host time in each call:

    SHORT="-q --perf-refcheck=off --perf-iters=5"
    CASES="benchmarks/host_cases.txt $SHORT --perf-config=benchmarks/host_thresholds.toml"
    for n in 1 2 3 4 5; do python3 -m pytest $CASES --benchmark-json=plain/$n.json; done
    for n in 1 2 3 4; do
        HOST_FAULT=busy PYTHONPATH=benchmarks:$PYTHONPATH python3 -m pytest -p planted_on_host $CASES \
            --benchmark-json=planted/$n.json
    done

Every ordered pair of plain processes, and every plain one with every planted one, is judged as `flashinfer-perf compare
--perf-config=benchmarks/host_thresholds.toml` judges two files. Then, for each case, how far the processes lie apart.
"""

import itertools
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.extensions.host.host_gate import QUANTITY
from pytest_flashinfer_perf.extensions.host.host_time import of
from pytest_flashinfer_perf.gate import read, thresholds
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.quantity import OtherTime
from pytest_flashinfer_perf.gate.verdict import Rules, Verdict
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.settings import project_file

HERE = Path(__file__).parent
TIMES = ("enqueue", "sd", "sd by reference", "plan", "sd", "sd by reference", "planted")
ByCase = dict[str, Counter[Verdict]]
HEADINGS = ("case", *TIMES, "identical: SLOWER", "planted: SLOWER")


def rules() -> Rules:
    project = project_file.find(HERE, str(HERE / "host_thresholds.toml"))
    return Rules(thresholds.read(project, [QUANTITY.limits]), quantities=(QUANTITY,))


def verdicts(pairs: Iterable[tuple[Run, Run]]) -> tuple[ByCase, Counter[int]]:
    """Of each case, and of all."""
    by_case: ByCase = {}
    codes: Counter[int] = Counter()
    for base, head in pairs:
        judgement = judge([base], [head], rules())
        codes[judgement.exit_code] += 1
        for judged in judgement.cases:
            by_case.setdefault(judged.name, Counter())[judged.verdict] += 1
    return by_case, codes


def share(counts: Counter[Verdict], verdict: Verdict = Verdict.SLOWER) -> str:
    return f"{counts[verdict]} of {counts.total()}"


def summary(title: str, by_case: ByCase, codes: Counter[int]) -> str:
    counts = sum(by_case.values(), Counter())
    shown = ", ".join(f"{count} {verdict.value}" for verdict, count in sorted(counts.items(), key=str))
    return f"{title}: of {counts.total()} verdicts {shown}; {codes[1]} of {codes.total()} comparisons exit 1"


def as_timed(processes: Sequence[Run], name: str, field: str) -> list[float]:
    """In microseconds."""
    hosts = [of(run.by_case[name]) for run in processes if name in run.by_case]
    return [us for seen in hosts if seen and (us := getattr(seen, field))]


def by_reference(processes: Sequence[Run], name: str, figure: OtherTime) -> Sequence[float]:
    rows = [run.by_case[name] for run in processes if name in run.by_case]
    seen = figure.replicates(rows, rows, paired=True) if rows else None
    return seen.before if seen else []


def sd(values: Sequence[float]) -> str:
    return f"{100 * statistics.stdev(values) / statistics.fmean(values):.2f} %" if len(values) > 1 else "-"


def median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} us" if values else "-"


def overhead(processes: Sequence[Run]) -> str:
    rows = [row for run in processes for row in run.rows if of(row)]
    passes = sum(seen.pass_s for row in rows if (seen := of(row)))
    cases = sum(row.execution.case_s or 0.0 for row in rows)
    return f"the pass takes {passes / len(rows):.3f} s a case, {100 * passes / (cases - passes):.1f} % of the rest"


def lines(plain: Sequence[Run], planted: Sequence[Run]) -> Iterator[str]:
    identical, codes = verdicts(itertools.permutations(plain, 2))
    yield summary("identical code", identical, codes)
    found, codes = verdicts(itertools.product(plain, planted))
    if planted:
        yield summary("planted", found, codes)
    yield f"{overhead(plain)}\n"
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{'---|' * len(HEADINGS)}"
    for name, counts in identical.items():
        before, plans = (as_timed(plain, name, field) for field in ("host_us", "plan_us"))
        compared, compared_plans = (by_reference(plain, name, figure) for figure in QUANTITY.figures)
        enqueue = (median(before), sd(before), sd(compared))
        plan = (median(plans), sd(plans), sd(compared_plans))
        times = (*enqueue, *plan, median(as_timed(planted, name, "host_us")))
        yield f"| {' | '.join((name, *times, share(counts), share(found.get(name, Counter()))))} |"


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    loading.manager()  # of extensions, whose parts the rows have
    plain, *planted = (read.read([folder]) for folder in sys.argv[1:])
    print("\n".join(lines(plain, *planted or [[]])))


if __name__ == "__main__":
    main()
