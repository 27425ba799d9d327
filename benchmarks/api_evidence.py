"""What every API gets on a GPU, as evidence/apis-h200.md has it.

python benchmarks/api_evidence.py lines FOLDER 12 6 2   # the smallest cases of all APIs, to compile side by side
python benchmarks/api_evidence.py right LOG...          # the lines of those that passed in runs with -v
python benchmarks/api_evidence.py table RUN.json...     # the tables of all these runs
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.apis import all_apis
from pytest_flashinfer_perf.apis.routine import ApiRoutine
from pytest_flashinfer_perf.spec.case import Case

# Families in the order in which they are compiled and measured: new ones first, those that need Blackwell last.
FIRST = (
    *("attention", "prefill", "pod", "gemm", "gdn_prefill", "decode"),
    *("mamba", "page", "topk", "topk_varlen", "cascade"),
)
LAST = ("fused_moe", "cute_dsl", "msa_ops", "cake_vsa", "comm", "gated_act_mxfp8", "attn_scores", "gdp_prefill")
HEAVY = ("fmha_v2", "pod", "trtllm", "segment")  # what may take minutes to compile comes last in its group
PASSED = re.compile(r"PASSED \S+?::([^\s\[]+)\[([^\]]*)\]")
SMALL_MOE = ("hash_topk", "mono_moe", "fused_topk_deepseek")


def rank(api: ApiRoutine) -> int:
    if any(api.name.endswith(name) for name in SMALL_MOE):
        return 0
    return 0 if api.family in FIRST else 2 if api.family in LAST else 1


def ordered() -> list[ApiRoutine]:
    return sorted(all_apis().values(), key=lambda api: (rank(api), any(x in api.name.lower() for x in HEAVY), api.name))


def cases(api: ApiRoutine) -> Iterator[Case[Any, Any]]:
    for shape in api.tiers["smoke"]():
        yield from (Case(api, shape, backend) for backend in api.backends if backend != "torch")


def write_lines(folder: str, *counts: str) -> None:
    """As many groups of each rank."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for which, count in enumerate(map(int, counts)):
        each = [api for api in ordered() if rank(api) == which]
        for nth in range(count):
            lines = [shlex.join(case.words) for api in each[nth::count] for case in cases(api)]
            Path(folder, f"group{which}-{nth}.txt").write_text("\n".join(lines) + "\n")


def entries(paths: list[str]) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Rows, and what has none, by case."""
    rows: dict[str, dict[str, Any]] = {}
    without: dict[str, dict[str, Any]] = {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        rows |= {row["extra_info"]["case"]: row for row in run["benchmarks"]}
        without |= {one["case"]: one for one in run["flashinfer_perf"]["unmeasured"]}
    return rows, {case: one for case, one in without.items() if case not in rows}


def print_right(*logs: str) -> None:
    passed = {f"{name}/{case}" for path in logs for name, case in PASSED.findall(Path(path).read_text())}
    for api in ordered():
        for case in cases(api):
            if case.identity.case in passed:
                print(shlex.join(case.words))


def print_table(*paths: str) -> None:
    rows, without = entries(list(paths))
    print("| case | median | answer | planted faults that were not caught | the reference |\n|---|---|---|---|---|")
    for case, row in sorted(rows.items()):
        info = row["extra_info"]
        median = f"{row['stats']['median'] * 1e6:.3g} us"
        missed = ", ".join(info.get("faults_missed") or []) or "-"
        told = info.get("no_reference") or info.get("weak_reference") or "-"
        print(f"| {case} | {median} | {info['refcheck']} | {missed} | {told} |")
    checked = [row["extra_info"] for row in rows.values() if row["extra_info"]["refcheck"] == "passed"]
    missed_ones = sum(len(info.get("faults_missed") or []) for info in checked)
    print(
        f"\n{len(checked)} of {len(rows)} checked, {4 * len(checked) - missed_ones} of {4 * len(checked)} faults caught"
    )
    known = {case.identity.case for api in all_apis().values() for case in cases(api)}
    print("\nNot reached: " + (", ".join(sorted(known - rows.keys() - without.keys())) or "none"))
    for outcome in sorted({one["outcome"] for one in without.values()}):
        print(f"\n## {outcome}\n\n| case | reason |\n|---|---|")
        for case, one in sorted(without.items()):
            if one["outcome"] == outcome:
                print(f"| {case} | {' '.join(one['reason'].split())[:220].replace('|', '/')} |")


if __name__ == "__main__":
    {"lines": write_lines, "right": print_right, "table": print_table}[sys.argv[1]](*sys.argv[2:])
