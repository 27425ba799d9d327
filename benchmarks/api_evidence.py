"""What every API gets on a GPU, as evidence/apis-h200.md has it.

python benchmarks/api_evidence.py lines FOLDER 12 6 2   # the smallest cases of all APIs, to compile side by side
python benchmarks/api_evidence.py right LOG...          # the lines of those that passed in runs with -v
python benchmarks/api_evidence.py faults LINES... > FAULTS.json  # which planted faults the check of each line misses
python benchmarks/api_evidence.py table FAULTS.json RUN.json...  # what each API got in all these runs
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from planted_faults import FAULTS, missed

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.apis.routine import ApiRoutine
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case

# Families in the order in which they are compiled and measured: new ones first, those that need Blackwell last.
FIRST = (
    *("attention", "prefill", "pod", "gemm", "gdn_prefill", "decode"),
    *("mamba", "page", "topk", "topk_varlen", "cascade"),
)
LAST = ("fused_moe", "cute_dsl", "msa_ops", "cake_vsa", "comm", "gated_act_mxfp8", "attn_scores", "gdp_prefill")
HEAVY = ("fmha_v2", "pod", "trtllm", "segment")  # what may take minutes to compile comes last in its group
PASSED = re.compile(r"PASSED \S+?::([^\s\[]+)\[([^\]]*)\]")
DECLARES = r"flashinfer declares no support of \S+(?: with backend \S+)? on compute capability ([\d.]+)"
NOT_REACHED = "not reached"
SMALL_MOE = ("hash_topk", "mono_moe", "fused_topk_deepseek")


def rank(api: ApiRoutine) -> int:
    if any(api.name.endswith(name) for name in SMALL_MOE):
        return 0
    return 0 if api.family in FIRST else 2 if api.family in LAST else 1


def ordered() -> list[ApiRoutine]:
    return sorted(all_apis().values(), key=lambda api: (rank(api), any(x in api.name.lower() for x in HEAVY), api.name))


def cases(api: ApiRoutine) -> Iterator[Case]:
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


def entries(paths: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows, and the cases that have none, each once: the last run's."""
    rows: dict[str, dict[str, Any]] = {}
    without: dict[str, dict[str, Any]] = {}
    for path in paths:
        run = json.loads(Path(path).read_text())
        rows |= {row["extra_info"]["case"]: row["extra_info"] | row["stats"] for row in run["benchmarks"]}
        without |= {one["case"]: one for one in run["flashinfer_perf"]["unmeasured"]}
    of_apis = [one for case, one in without.items() if case not in rows and "routine" in one]
    return list(rows.values()), of_apis


def print_right(*logs: str) -> None:
    passed = {f"{name}/{case}" for path in logs for name, case in PASSED.findall(Path(path).read_text())}
    for api in ordered():
        for case in cases(api):
            if case.identity.case in passed:
                print(shlex.join(case.words))


def print_faults(*paths: str) -> None:
    """The planted faults that the check of each case takes for an answer; a case that cannot run is left out."""
    device = devices.find("auto")
    found: dict[str, list[str]] = {}
    for line in [line for path in paths for line in Path(path).read_text().splitlines() if line.strip()]:
        for case in lines.cases_of(shlex.split(line), all_routines()):
            try:
                found[case.identity.case] = missed(case, device)
            except (FlashinferPerfError, RuntimeError) as error:
                print(f"{case.identity.case}: {error}", file=sys.stderr)
            device.give_back_memory()
    json.dump(found, sys.stdout, indent=1)


def print_table(faults: str, *paths: str) -> None:
    """One line for each API, by family."""
    rows, without = entries(list(paths))
    planted = json.loads(Path(faults).read_text())
    rows = [{"faults_missed": planted.get(row["case"], list(FAULTS)), **row} for row in rows]  # earlier rows have them
    of_api: dict[str, list[str]] = {name: [] for name in sorted(all_apis())}
    for row in sorted(rows, key=lambda row: row["case"]):
        of_api[row["routine"]].append(measured(row))
    for (name, outcome, reason), backends in by_reason(without).items():
        of_api[name].append(f"{', '.join(backends)}: {'**not right**, ' if outcome == 'failed' else ''}{reason}")
    print_counts(rows, without)
    for family in sorted({api.family for api in all_apis().values()}):
        print(f"\n## {family}\n\n| API | what it got |\n|---|---|")
        for name, got in of_api.items():
            if all_apis()[name].family == family:
                print(f"| {name.removeprefix('flashinfer.')} | {'; '.join(got) or NOT_REACHED} |")


def measured(row: dict[str, Any]) -> str:
    missed = row["faults_missed"]
    caught = f"{4 - len(missed)} of 4 faults" + (f" (not {', '.join(missed)})" if missed else "")
    weak = row["no_reference"] or row["weak_reference"]
    return f"{row['backend']} {row['shape']}: {row['median'] * 1e6:.3g} us, {caught}" + (f"; {weak}" if weak else "")


def by_reason(without: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[str]]:
    """The backends that ended alike, by API, outcome and reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for one in sorted(without, key=lambda one: one["case"]):
        found_as = (one["routine"], one["outcome"], shortened(one))
        found.setdefault(found_as, []).append(one["backend"])
    return found


def shortened(one: dict[str, Any]) -> str:
    """Without what the line says already."""
    name = one["routine"].partition(":")[0]
    reason = re.sub(DECLARES, r"declares no support of compute capability \1", " ".join(one["reason"].split()))
    reason = re.sub(r" at /\S+", "", reason)  # of a source that is gone with the machine
    for start in (name, " refuses: ", " ", "Failed: wrong answer: "):
        reason = reason.removeprefix(start)
    return reason.partition(" (the backend declined")[0][:200].replace("|", "/")


def print_counts(rows: list[dict[str, Any]], without: list[dict[str, Any]]) -> None:
    """Of APIs, of which one counts as measured if any of its backends is; a fault as caught if all of them catch it."""
    right = {row["routine"] for row in rows if row["refcheck"] == "passed"}
    missed = {(row["routine"], fault) for row in rows if row["routine"] in right for fault in row["faults_missed"]}
    failed = {one["routine"] for one in without if one["outcome"] == "failed"} - right
    unchecked = {row["routine"] for row in rows} - right - failed
    skipped = {one["routine"] for one in without} - right - failed - unchecked
    reached = right | failed | unchecked | skipped
    pairs = 4 * len(right)
    print(f"{len(right)} APIs right and timed, {pairs - len(missed)} of {pairs} planted faults caught;")
    print(f"{len(unchecked)} timed without a reference, {len(failed)} not right, {len(skipped)} skipped, ", end="")
    print(f"{len(all_apis().keys() - reached)} not reached, of {len(all_apis())}.")


COMMANDS: dict[str, Callable[..., None]] = {
    "lines": write_lines,
    "right": print_right,
    "faults": print_faults,
    "table": print_table,
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
