"""What `flashinfer-perf ab` found, as the tables of docs/evidence/: python benchmarks/gate_evidence.py DIR...

Each DIR is an `--output` of ab. One whose head was slowed down by slow_down.py is told by the file that says what was
planted: DIR=PLANTED.json. On a GPU, where PYTHONPATH has this repository and FlashInfer:

    CASES="benchmarks/gate_cases.txt --import-mode=importlib -q"
    flashinfer-perf ab --base python3 --head python3 --budget 500 --output same -- $CASES
    pytest $CASES --benchmark-json=base.json
    SLOW="env PYTHONPATH=$PYTHONPATH:benchmarks SLOW_DOWN_FROM=base.json SLOW_DOWN_BY"
    flashinfer-perf ab --base python3 --head "$SLOW=0.03 python3 -m pytest -p slow_down" \
        --budget 500 --output slower-3 -- $CASES
    flashinfer-perf ab --base "env PYTHONPATH=$PWD:OLD python3" --head "env PYTHONPATH=$PWD:NEW python3" \
        --budget 500 --output versions -- $CASES
    python benchmarks/gate_evidence.py same slower-3=base.json.planted-0.03.json versions
"""

import json
import math
import statistics
import sys
from pathlib import Path

LONG_US = (("all", 0.0), ("50 us and more", 50.0), ("150 us and more", 150.0))
BOUNDS = ("memory", "memory?", "compute", None)


def percent(log_ratio):
    return f"{100 * math.expm1(log_ratio):+.2f} %"


def microseconds(seconds):
    return f"{1e6 * statistics.median(seconds):.4g} us" if seconds else "-"


def session(folder, verdicts):
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


def changes(verdicts):
    yield "| case | bound | judged in | before | after | time | cycles | sees | pairs | verdict |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for case in verdicts["cases"]:
        effects = case["effects"]
        domains = [percent(effects[d]["change"]) if d in effects else "" for d in ("time", "cycles")]
        times = [microseconds(case[side]) for side in ("before_s", "after_s")]
        sees = percent(case["sees"]) if case["sees"] is not None else ""
        why = "; ".join((f"{case['verdict']} ({case['reason']})", *case["remarks"]))
        facts = (case["case"], case["bound"] or "", case["judged_in"] or "", *times, *domains, sees)
        yield f"| {' | '.join(facts)} | {len(case['before_s'])} | {why} |"
    yield ""


def found(verdicts, planted):
    yield "| cases | bound | planted | measured | found |"
    yield "|---|---|---|---|---|"
    compared = [case for case in verdicts["cases"] if case["effects"]]
    for name, least in LONG_US:
        for bound in BOUNDS:
            of_it = [c for c in compared if c["bound"] == bound and planted[c["case"]]["median_us"] >= least]
            if of_it:
                cells = (name, bound or "unknown", share(of_it, planted), measured(of_it), slower(of_it))
                yield f"| {' | '.join(cells)} |"
    yield ""


def share(cases, planted):
    return spread([planted[c["case"]]["planted_us"] / planted[c["case"]]["median_us"] for c in cases])


def measured(cases):
    return spread([math.expm1(c["effects"][c["judged_in"]]["change"]) for c in cases])


def spread(shares):
    return f"{100 * min(shares):.2f} to {100 * max(shares):.2f} %"


def slower(cases):
    hits = sum(case["verdict"] == "SLOWER" for case in cases)
    return f"{hits} of {len(cases)} ({100 * hits / len(cases):.0f} %)"


def lines(argument):
    folder, _, planted = argument.partition("=")
    verdicts = json.loads((Path(folder) / "verdicts.json").read_text())
    yield from session(Path(folder), verdicts)
    if planted:
        yield from found(verdicts, json.loads(Path(planted).read_text()))
    yield from changes(verdicts)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for argument in sys.argv[1:]:
        print("\n".join(lines(argument)))


if __name__ == "__main__":
    main()
