"""What the gate's verdicts are worth, on simulated processes: python tests/acceptance/gate_acceptance.py

Rows as pytest-benchmark writes them, with the noise that eight processes showed on one H200
(evidence/method-h200.md). The tests run the same simulations, smaller. At full size they take 9 minutes on one core.
"""

import argparse
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_flashinfer_perf.extensions.bisect.pairs import PairSchedule
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Judgement, Rules, Verdict
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import Run


@dataclass(frozen=True)
class Kernel:
    """Median in microseconds; between processes the relative sd of time and of cycles; within one, of samples."""

    name: str
    us: float
    bound: str
    time_sd: float
    within_sd: float
    cycles_sd: float | None = None


H200 = (
    Kernel("decode-b64", 497.1, "memory", 0.0009, 0.005, 0.0040),
    Kernel("decode-b16", 33.4, "memory", 0.0017, 0.014, 0.0040),
    Kernel("decode-b1", 10.6, "memory", 0.0022, 0.040, 0.0040),
    Kernel("add-16m", 18.0, "memory", 0.0025, 0.027, 0.0040),
    Kernel("prefill-fa2-b4", 3214, "compute", 0.0121, 0.010, 0.0009),
    Kernel("matmul-4096", 178.4, "compute", 0.0053, 0.009, 0.0008),
    Kernel("matmul-1024", 5.75, "compute", 0.0039, 0.028, 0.0138),
    Kernel("prefill-fa2-b1", 105.7, "compute", 0.0088, 0.047, 0.0030),
    Kernel("prefill-fa3-b4", 2100, "compute", 0.030, 0.036, 0.0026),
    Kernel("prefill-fa3-b1", 71.0, "compute", 0.038, 0.078, 0.0030),
)
GHZ = 1.8
Changes = Mapping[str, float] | None  # by name, the share by which a kernel is slower
How = Callable[..., Judgement]


def even(cases: int, sd: float) -> list[Kernel]:
    """Cases that all vary alike, none of them with cycles."""
    return [Kernel(f"case-{i}", 200.0, "memory", sd, 0.01) for i in range(cases)]


def table(cases: int) -> list[Kernel]:
    return [Kernel(f"{k.name}-{i}", *list(vars(k).values())[1:]) for i in range(cases) for k in [H200[i % len(H200)]]]


def noisy(rng: random.Random, sd: float) -> float:
    return math.exp(rng.gauss(0.0, sd))


def row(kernel: Kernel, rng: random.Random, *, slower: float = 0.0, clock: float = 1.0) -> dict[str, Any]:
    """One process's row; with a lower clock a compute-bound kernel takes longer and as many cycles."""
    stretched = kernel.us * (1 + slower) / (clock if kernel.bound == "compute" else 1.0)
    median = 1e-6 * stretched * noisy(rng, kernel.time_sd)
    cycles = None
    if kernel.cycles_sd:
        cycles = (kernel.us * (1 + slower) * (clock if kernel.bound == "memory" else 1.0) + 3.5) * GHZ * 1e3
        cycles *= noisy(rng, kernel.cycles_sd)
    info = {"case": kernel.name, "bound": kernel.bound, "cycles": cycles, "sm_ghz": GHZ * clock, "status": "ok"}
    info |= {"instrument": "cupti", "cold_l2": "rotate", "gpu_uuid": "GPU-0", "device_name": "NVIDIA H200"}
    stats = {
        "median": median,
        "mean": median,
        "stddev": kernel.within_sd * median,
        "iqr": 1.349 * kernel.within_sd * median,
        "rounds": 50,
    }
    return {"name": kernel.name, "fullname": f"t.py::{kernel.name}", "stats": stats, "extra_info": info}


def process(
    kernels: Iterable[Kernel],
    rng: random.Random,
    changes: Changes = None,
    clock: float = 1.0,
    skipped: Iterable[str] = (),
) -> Run:
    changed = changes or {}
    rows = [row(k, rng, slower=changed.get(k.name, 0.0), clock=clock) for k in kernels]
    left = [{"case": name, "outcome": "skipped", "reason": "needs another GPU"} for name in skipped]
    block = {run_file.SCHEMA_KEY: {"schema": run_file.SCHEMA, "unmeasured": left}}
    return run_file.parse({"benchmarks": rows, "machine_info": {"driver": "580"}, **block}, "simulated")


def rules(slower: str = "2%", **others: Any) -> Rules:
    share = float(slower.rstrip("%")) / 100
    return Rules(Thresholds((("*", {"slower": share}),)), paired=True, **others)


def five_pairs(
    kernels: Sequence[Kernel], rng: random.Random, held_to: Rules, changes: Changes = None, clock: float = 1.0
) -> Judgement:
    base = [process(kernels, rng) for _ in range(5)]
    head = [process(kernels, rng, changes, clock) for _ in range(5)]
    return judge(base, head, held_to)


def planned(
    kernels: Sequence[Kernel], rng: random.Random, held_to: Rules, changes: Changes = None
) -> tuple[Judgement, float]:
    """As `flashinfer-perf ab` does it: early stops, more pairs, confirmation. Also how many pairs a case took."""
    taken = []

    def measure(_nth: int, wanted: Any) -> tuple[Run, Run]:
        asked = [k for k in kernels if wanted is None or k.name in wanted]
        taken.append(len(asked))
        return process(asked, rng), process(asked, rng, changes)

    return PairSchedule().follow(measure, held_to), sum(taken) / len(kernels)


def rate(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def false_alarms(
    seed: int, sessions: int, kernels: Sequence[Kernel], held_to: Rules, how: How
) -> tuple[float, float, float]:
    """Shares of cases, and of whole runs, in which identical code is called slower; of runs, slower or faster."""
    rng = random.Random(seed)
    counted = [how(kernels, rng, held_to).counts for _ in range(sessions)]
    slower = [counts[Verdict.SLOWER] for counts in counted]
    either = [counts[Verdict.SLOWER] + counts[Verdict.FASTER] for counts in counted]
    return rate(sum(slower), sessions * len(kernels)), _of_runs(slower), _of_runs(either)


def _of_runs(found: Sequence[int]) -> float:
    return rate(sum(n > 0 for n in found), len(found))


def power(
    seed: int, sessions: int, kernels: Sequence[Kernel], held_to: Rules, how: How, *, slower: float, share: float
) -> tuple[float, float]:
    """Of cases that did get slower the share that is found; of those called slower the share that did not."""
    rng = random.Random(seed)
    hit = planted = 0
    false_shares = []
    for _ in range(sessions):
        changes = {k.name: slower for k in rng.sample(kernels, max(1, round(share * len(kernels))))}
        called = {judged.name for judged in how(kernels, rng, held_to, changes=changes).having(Verdict.SLOWER)}
        hit += len(called & set(changes))
        planted += len(changes)
        false_shares.append(rate(len(called - set(changes)), len(called)))
    return rate(hit, planted), rate(math.fsum(false_shares), sessions)


def lower_clock(seed: int, sessions: int) -> int:
    """How often a compute-bound case is called slower when the clock is 15 % lower, and its cycles unchanged."""
    rng = random.Random(seed)
    compute = [k for k in table(50) if k.bound == "compute"]
    return sum(len(five_pairs(compute, rng, rules(), clock=0.85).having(Verdict.SLOWER)) for _ in range(sessions))


def damaged(rng: random.Random) -> tuple[Run, Run]:
    """A baseline, and a run in which at least one of its cases is gone: deleted, skipped, renamed, or all of them."""
    kernels = rng.sample(table(30), rng.randint(1, 12))
    base, lost = process(kernels, rng), rng.choice(("deleted", "skipped", "renamed", "empty"))
    victims = set(rng.sample([k.name for k in kernels], rng.randint(1, len(kernels))))
    kept = [] if lost == "empty" else [k for k in kernels if k.name not in victims]
    head = process(kept, rng, skipped=victims if lost == "skipped" else ())
    if lost == "renamed":
        renamed = [replace(k, name=f"{k.name}-renamed") for k in kernels if k.name in victims]
        head = process([*kept, *renamed], rng)
    return base, head


def passes_of_damaged(seed: int, pairs: int) -> int:
    """How many of such pairs end with exit code 0; none may."""
    rng = random.Random(seed)
    return sum(judge([base], [head], Rules()).exit_code == 0 for base, head in (damaged(rng) for _ in range(pairs)))


def as_ab(kernels: Sequence[Kernel], rng: random.Random, held_to: Rules, changes: Changes = None) -> Judgement:
    return planned(kernels, rng, held_to, changes)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=8)
    said = parser.parse_args()
    size, seed = (said.sessions, said.seed)
    start = time.perf_counter()
    for name, kernels, held_to in (
        ("H200's noise, slower = 2%", table(said.cases), rules()),
        ("H200's noise, slower = 0.5%", table(said.cases), rules("0.5%")),
        ("sd 0.3 %, slower = 0.5%", even(said.cases, 0.003), rules("0.5%")),
    ):
        for what, how in (("5 pairs", five_pairs), ("ab", as_ab)):
            of_cases, of_runs, changed = false_alarms(seed, size, kernels, held_to, how)
            print(f"A/A, {name}, {what}: slower {of_cases:.3%} of cases, {of_runs:.1%} of runs; changed {changed:.1%}")
    kernels, held_to = even(said.cases, 0.003), rules("0.5%")
    for what, how in (("5 pairs", five_pairs), ("ab", as_ab)):
        for share in (0.005, 0.05):
            found, fdr = power(seed, size, kernels, held_to, how, slower=0.01, share=share)
            print(f"+1 % in {share:.1%} of cases, sd 0.3 %, slower = 0.5%, {what}: {found:.2%} found, FDR {fdr:.3f}")
    for slower in (0.01, 0.03, 0.10):
        for what, how in (("5 pairs", five_pairs), ("ab", as_ab)):
            found, fdr = power(seed, size // 4, table(said.cases), rules(), how, slower=slower, share=0.1)
            print(
                f"+{slower:.0%} in 10 % of cases, H200's noise, slower = 2%, {what}: {found:.2%} found, FDR {fdr:.3f}"
            )
    print(f"cases deleted, skipped or renamed, empty runs: {passes_of_damaged(seed, 1000)} of 1000 pass")
    print(f"clock 15 % lower: {lower_clock(seed, size)} called slower")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
