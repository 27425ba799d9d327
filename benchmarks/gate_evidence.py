"""What `flashinfer-perf ab` and `prove` found, as tables of evidence/: python benchmarks/gate_evidence.py DIR...

Each DIR is an `--output` of either. What prove has planted, ab can look for too. On a GPU, where PYTHONPATH has this
repository and FlashInfer:

    CASES="benchmarks/gate_cases.txt --import-mode=importlib -q"
    flashinfer-perf prove --share 3% --output proof -- $CASES
    flashinfer-perf ab --base python3 --head python3 --budget 500 --output same -- $CASES
    flashinfer-perf ab --base python3 --head "python3 -m pytest --perf-plant=$PWD/proof/plants.json" \
        --budget 500 --output slower-3 -- $CASES
    flashinfer-perf ab --base "env PYTHONPATH=$PWD:OLD python3" --head "env PYTHONPATH=$PWD:NEW python3" \
        --budget 500 --output versions -- $CASES
    python benchmarks/gate_evidence.py proof same slower-3 versions
"""

import json
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

LONG_US = (("all", 0.0), ("5 us and more", 5.0), ("20 us and more", 20.0))
BOUNDS = ("memory", "memory?", "compute", None)


def percent(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def microseconds(seconds: Sequence[float]) -> str:
    return f"{1e6 * statistics.median(seconds):.4g} us" if seconds else "-"


def session(folder: Path, verdicts: Mapping[str, Any]) -> Iterator[str]:
    said = json.loads((folder / "session.json").read_text())
    pairs = [len(case["before_s"]) for case in verdicts["cases"] if case["effects"]]
    yield f"## {folder.name}"
    yield ""
    yield f"base `{' '.join(said['base'])}`, head `{' '.join(said['head'])}`, `{' '.join(said['arguments'])}`"
    yield ""
    yield f"{verdicts['headline']}. {len(said['pair_s'])} pairs in {said['wall_s']:.0f} s; a case took"
    yield f"{min(pairs, default=0)} to {max(pairs, default=0)} pairs, {statistics.fmean(pairs or [0]):.1f} on average."
    for note in (*verdicts["notes"], *verdicts["refusals"]):
        yield f"{note}."
    yield ""


def changes(verdicts: Mapping[str, Any]) -> Iterator[str]:
    yield "| case | bound | judged in | before | after | time | cycles | detects from | pairs | verdict |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for case in verdicts["cases"]:
        effects = case["effects"]
        domains = [percent(effects[d]["change"]) if d in effects else "" for d in ("time", "cycles")]
        times = [microseconds(case[side]) for side in ("before_s", "after_s")]
        detectable = percent(case["detectable"]) if case["detectable"] is not None else ""
        why = "; ".join((f"{case['verdict']} ({case['reason']})", *case["remarks"]))
        facts = (case["case"], case["bound"] or "", case["judged_in"] or "", *times, *domains, detectable)
        yield f"| {' | '.join(facts)} | {len(case['before_s'])} | {why} |"
    yield ""


def found(proof: Mapping[str, Any]) -> Iterator[str]:
    """By what binds the cases and how long they take: the least and the most of each."""
    yield "| cases | bound | planted | measured | found |"
    yield "|---|---|---|---|---|"
    for name, least in LONG_US:
        for bound in BOUNDS:
            of_it = [c for c in proof["cases"] if c["counted"] and c["bound"] == bound and median_us(c) >= least]
            if of_it:
                shares = (spread([case[what] for case in of_it]) for what in ("asked", "measured"))
                yield f"| {name} | {bound or 'unknown'} | {' | '.join(shares)} | {slower(of_it)} |"
    yield ""


def median_us(case: Mapping[str, Any]) -> float:
    return 1e6 * float(statistics.median(case["plain_s"]))


def spread(shares: Sequence[float]) -> str:
    return f"{100 * min(shares):.2f} to {100 * max(shares):.2f} %"


def slower(cases: Iterable[Mapping[str, Any]]) -> str:
    hits = sum(case["planted"].get("SLOWER", 0) for case in cases)
    tries = sum(sum(case["planted"].values()) for case in cases)
    return f"{hits} of {tries} ({100 * hits / tries:.1f} %)"


def lines(folder: Path) -> Iterator[str]:
    if (folder / "proof.json").is_file():
        yield (folder / "proof.md").read_text()
        yield from found(json.loads((folder / "proof.json").read_text()))
        return
    verdicts = json.loads((folder / "verdicts.json").read_text())
    yield from session(folder, verdicts)
    yield from changes(verdicts)


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        print("\n".join(lines(Path(argument))))


if __name__ == "__main__":
    main()
