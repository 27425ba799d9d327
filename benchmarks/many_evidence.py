"""One run beside another of the same cases, as a table of evidence/: python benchmarks/many_evidence.py ONE MANY

On two GPUs:

    CUDA_VISIBLE_DEVICES=0 pytest $CASES --benchmark-json=one.json
    pytest $CASES -n auto --benchmark-json=many.json
    python benchmarks/many_evidence.py one.json many.json
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WITHIN = 0.02


def rows(document: Mapping[str, Any]) -> dict[str, Any]:
    return {row["fullname"]: row for row in document["benchmarks"]}


def by_gpu(found: Mapping[str, Any]) -> dict[str, list[float]]:
    gpus: dict[str, list[float]] = defaultdict(list)
    for row in found.values():
        gpus[row["extra_info"]["gpu_uuid"] or "CPU"].append(row["extra_info"]["case_s"])
    return gpus


def compared(one: Mapping[str, Any], many: Mapping[str, Any]) -> Iterator[str]:
    both = [name for name in one if name in many]
    changes = {name: many[name]["stats"]["median"] / one[name]["stats"]["median"] - 1 for name in both}
    yield f"{len(both)} cases in both; only in one: {len(one) - len(both)}, only in the other: {len(many) - len(both)}"
    if changes:
        sizes = sorted(map(abs, changes.values()))
        inside = sum(size <= WITHIN for size in sizes)
        typical, worst = statistics.median(sizes), sizes[-1]
        yield f"medians within {WITHIN:.0%}: {inside} of {len(sizes)}; typical {typical:.2%}, worst {worst:.2%}"
    yield ""
    yield "| case | one | other | change | GPU |"
    yield "|---|---|---|---|---|"
    for name in sorted(changes, key=lambda name: -abs(changes[name])):
        times = [f"{1e6 * side[name]['stats']['median']:.2f} us" for side in (one, many)]
        facts = (*times, f"{changes[name]:+.2%}", str(many[name]["extra_info"]["gpu_uuid"]))
        yield f"| `{name.rpartition('::')[2]}` | {' | '.join(facts)} |"


def lines(names: Sequence[str]) -> Iterator[str]:
    documents = [json.loads(Path(name).read_text()) for name in names]
    for name, document in zip(names, documents, strict=True):
        for gpu, seconds in by_gpu(rows(document)).items():
            yield f"{name}: {gpu}: {len(seconds)} rows in {sum(seconds):.1f} s"
        for case in document["flashinfer_perf"]["unmeasured"]:
            yield f"{name}: {case['test']}: {case.get('ended', case['outcome'])}: {case['reason']}"
    yield from compared(*map(rows, documents))


if __name__ == "__main__":
    print("\n".join(lines(sys.argv[1:3])))
