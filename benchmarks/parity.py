"""Upstream's script beside this suite: the same lines, the same FlashInfer, the same card, processes in turns.

python benchmarks/parity.py run --upstream DIR --output FOLDER [--turns 5] [--seconds 300] [-- PYTEST_ARGS]
python benchmarks/parity.py table FOLDER

DIR has flashinfer_benchmark.py, of the release that is installed. A turn is a process of each: the script, this suite
with the script's counts and flush, and this suite as it is by default; every second turn begins with the other end.
What a process has measured stays in FOLDER, and a further `run` goes on from there. The table is Markdown; it exits
with 1 if a median is not within 2 % or 0.1 us of the script's, or FLOPs, bytes or lengths differ without a known cause.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.extensions.testlists import upstream
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.row import Row

HERE = Path(__file__).parent
CASES = [HERE / "prebuild_cases.txt", HERE / "parity_cases.txt"]
UPSTREAM, FLUSH, DEFAULT = "upstream", "flush", "default"
LIKE_UPSTREAM = ("--perf-cold-l2=flush", "--perf-iters=30", "--perf-warmup=5")
NEAR, FLOOR_US = 0.02, 0.1
SAME = 1e-3
UNEXPLAINED = "UNEXPLAINED"
LONGEST = 240.0  # of a process, in seconds
RENAMED = {"trtllm-gen-native": "trtllm-native", "prims_ts": "prims-ts"}
# Why FLOPs or bytes are not the script's, by family or routine.
CAUSES = {
    "attention FLOPs": "upstream's causal formula halves the square, which leaves out half of the diagonal",
    "attention bytes": "page tables, offsets and lengths are counted here",
    "bmm_fp8 bytes": "upstream leaves out the batch, but for the output",
    "api FLOPs": "upstream estimates operations for each element; of an API only products are counted",
    "api bytes": "upstream counts some of the call's tensors; of an API all that its template declares are",
}


@dataclass
class Seen:
    """What the processes of one program say of one case."""

    medians: list[float] = field(default_factory=list)  # us
    flops: float = 0.0
    bytes: float = 0.0
    length: str = ""
    name: str = ""
    family: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.medians)


Key = tuple[str, str]  # a line's tag, and a backend


def tagged(files: Sequence[Path]) -> Iterator[str]:
    """The lines of these files with a tag each, by which both programs' rows are matched."""
    lines = (line for file in files for line in file.read_text().splitlines() if line.startswith("--"))
    for number, line in enumerate(lines, 1):
        yield f"{line} --case_tag line-{number}"


def command(program: str, script: Path, lines: Path, output: Path, more: Sequence[str]) -> list[str]:
    if program == UPSTREAM:
        return [sys.executable, script.name, "--testlist", str(lines), "--output_path", str(output)]
    like = LIKE_UPSTREAM if program == FLUSH else ()
    quietly = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib")
    return [sys.executable, "-m", "pytest", str(lines), *quietly, *like, *more, f"--benchmark-json={output}"]


def measure(folder: Path, script: Path, turns: int, seconds: float, more: Sequence[str]) -> None:
    started, lines = time.monotonic(), (folder / "lines.txt").absolute()
    for turn in range(turns):
        programs = (UPSTREAM, FLUSH, DEFAULT)
        for program in programs if turn % 2 == 0 else programs[::-1]:
            kept = folder.absolute() / f"{program}-{turn}{'.csv' if program == UPSTREAM else '.json'}"
            left = seconds - (time.monotonic() - started)
            if kept.exists():
                continue
            if left <= 0:
                print(f"{kept.name}: no time is left, run again to go on", flush=True)
                return
            print(f"{time.monotonic() - started:6.1f} s  {kept.name}", flush=True)
            _keep(program, script, lines, kept, more, min(left + 60, LONGEST))


def _keep(  # noqa: PLR0913, PLR0917 - one argument per fact of a process
    program: str, script: Path, lines: Path, kept: Path, more: Sequence[str], limit: float
) -> None:
    """Run a process; its results take their name once it has ended by itself."""
    part = kept.with_name(f"part-{kept.name}")
    with kept.with_suffix(".log").open("w") as log:
        words = command(program, script, lines, part, more)
        where = script.parent if program == UPSTREAM else HERE.parent
        try:
            subprocess.run(words, cwd=where, stdout=log, stderr=log, check=False, timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"{kept.name}: ended after {limit:.0f} s, see {log.name}", flush=True)
            return
    if part.exists():
        part.rename(kept)
    else:
        print(f"{kept.name}: no results, see {kept.with_suffix('.log')}", flush=True)


def of_upstream(path: Path) -> Iterator[tuple[Key, Seen]]:
    for row in csv.DictReader(path.read_text().splitlines()):
        milliseconds = float(row["median_time"])
        flops, size = (float(row[name] or 0) * milliseconds * 1e9 for name in ("tflops", "tb_per_sec"))
        backend = RENAMED.get(row["backend"], row["backend"])
        length = row.get("avg_actual_seq_len") or ""
        yield (row["case_tag"], backend), Seen([1e3 * milliseconds], flops, size, length)


def of_run(path: Path) -> Iterator[tuple[Key, Seen]]:
    for row in run_file.read(path).rows:
        work = row.throughput
        yield (
            (row.identity.case_tag or "", row.identity.backend or ""),
            Seen(
                [1e6 * row.median], work.flops or 0, work.bytes or 0, _length(row), row.case, row.identity.family or ""
            ),
        )


def _length(row: Row) -> str:
    if "avg_actual_seq_len" not in row.facts:
        return ""
    own = "" if row.facts.get("upstream_seq_lens", True) else " (not upstream's)"
    return f"{row.facts['avg_actual_seq_len']}{own}"


def seen(folder: Path, program: str) -> dict[Key, Seen]:
    found: dict[Key, Seen] = {}
    read, suffix = (of_upstream, "csv") if program == UPSTREAM else (of_run, "json")
    for path in sorted(folder.glob(f"{program}-*.{suffix}")):
        for key, one in read(path):
            one.medians = [*(found[key].medians if key in found else ()), *one.medians]
            found[key] = one
    return found


def matched(theirs: dict[Key, Seen], ours: dict[Key, Seen]) -> dict[Key, Seen]:
    """Ours under their keys: an API's only backend has a name of its own on either side."""
    by_tag: dict[str, list[Key]] = defaultdict(list)
    for tag, backend in ours:
        by_tag[tag].append((tag, backend))
    alone = {tag: keys[0] for tag, keys in by_tag.items() if len(keys) == 1}
    return {key: ours[key if key in ours else alone[key[0]]] for key in theirs if key in ours or key[0] in alone}


def difference(what: str, theirs: float, ours: float, one: Seen) -> tuple[str, str]:
    """A cell with ours over theirs, and why it is not 1."""
    if ours == theirs or (theirs and abs(ours / theirs - 1) <= SAME):
        return "=", ""
    routine = one.name.partition("/")[0]
    family = one.family if routine in upstream.RUNS else "api"
    subject = next((name for name in (routine, family) if f"{name} {what}" in CAUSES), routine)
    cause = CAUSES.get(f"{subject} {what}", UNEXPLAINED)
    return (f"{ours / theirs:.4g}" if theirs else f"{ours:.4g} / 0"), f"{subject} {what}: {cause}"


HEAD = """| case | upstream, us | flush, us | difference | within 2 % | default, us | FLOPs | bytes | average length |
|---|---|---|---|---|---|---|---|---|"""


def compared(theirs: Seen, ours: Seen, usual: Seen | None) -> tuple[list[str], list[str], bool]:
    """The cells of a case, the causes of what differs, and whether all is as it should be."""
    near = abs(ours.median - theirs.median) <= max(NEAR * theirs.median, FLOOR_US)
    flops, why_flops = difference("FLOPs", theirs.flops, ours.flops, ours)
    size, why_size = difference("bytes", theirs.bytes, ours.bytes, ours)
    causes = [why for why in (why_flops, why_size) if why]
    change = f"{100 * (ours.median / theirs.median - 1):+.1f} %"
    times = [f"{theirs.median:.2f}", f"{ours.median:.2f}", change, "yes" if near else "**no**"]
    by_default = f"{usual.median:.2f}" if usual else "-"
    same = theirs.length == ours.length
    length = ours.length if same else f"**{theirs.length}, here {ours.length}**"
    fine = near and same and not any(UNEXPLAINED in why for why in causes)
    return [ours.name, *times, by_default, flops, size, length], causes, fine


def table(folder: Path) -> int:
    theirs, flush, default = (seen(folder, program) for program in (UPSTREAM, FLUSH, DEFAULT))
    ours, usual = matched(theirs, flush), matched(theirs, default)
    turns = sorted({len(one.medians) for one in (*theirs.values(), *flush.values(), *default.values())})
    print(f"Medians of {' or '.join(map(str, turns))} processes.\n\n{HEAD}")
    causes: dict[str, None] = {}
    wrong = not theirs
    for key, one in theirs.items():
        if key in ours:
            cells, why, fine = compared(one, ours[key], usual.get(key))
            causes |= dict.fromkeys(why)
        else:
            cells, fine = [" ".join(key), f"{one.median:.2f}", *["-"] * 7], False
        wrong = wrong or not fine
        print(f"| {' | '.join(cells)} |")
    alone = [one.name for one in flush.values() if all(one is not mine for mine in ours.values())]
    print("".join(f"\n* {cause}." for cause in [*causes, *(f"only here: {name}" for name in alone)]))
    return int(wrong)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = parser.add_subparsers(dest="what", required=True)
    run = known.add_parser("run")
    run.add_argument("--upstream", type=Path, required=True)
    run.add_argument("--output", type=Path, required=True)
    run.add_argument("--cases", type=Path, nargs="+", default=CASES)
    run.add_argument("--turns", type=int, default=5)
    run.add_argument("--seconds", type=float, default=300.0)
    known.add_parser("table").add_argument("folder", type=Path)
    end = words.index("--") if "--" in words else len(words)
    asked = parser.parse_args(words[:end])
    if asked.what == "table":
        return table(asked.folder)
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "lines.txt").write_text("\n".join(tagged(asked.cases)) + "\n")
    measure(asked.output, asked.upstream / upstream.SCRIPT, asked.turns, asked.seconds, words[end + 1 :])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
