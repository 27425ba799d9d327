"""`flashinfer-perf tune-report`: what FlashInfer's tuner costs, tactic by tactic."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.cli import judging
from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.config.option import SECONDS, whole
from pytest_flashinfer_perf.files import read_json, verify_outputs, write_json, write_whole
from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.run_file import RunError
from pytest_flashinfer_perf.tuner import report
from pytest_flashinfer_perf.tuner.report import Finding
from pytest_flashinfer_perf.tuner.runs import Asked, Runs

FORMAT = "flashinfer-perf tune-report 1"
MOST_TRANSFERS = 5
EXAMPLE = "example: flashinfer-perf tune-report --tunes 10 -- tests/gemm -k 'mm_bf16 and cublaslt'"


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    limits = thresholds.read(project_file.find(Path.cwd(), args.perf_config))
    outputs = {"--json": args.json, "--markdown": args.markdown, "--write-cache": args.write_cache}
    verify_outputs(outputs, [path for path in (args.cache, args.base) if path])
    if args.write_cache and args.write_cache.exists():
        raise RunError(f"--write-cache={args.write_cache}: the file is there, name a new one")
    before = _cases_of(args.base) if args.base else []
    folder, gpu, start = processes.folder(args.output, "tune-report"), processes.gpu(for_pytest), time.monotonic()
    asked = Asked(for_pytest, args.budget, args.tunes, args.cache, args.write_cache)
    runs = Runs(asked, folder)
    with processes.alone_on(gpu):
        seen = runs.cases()
    cases = [case for case in seen if "tactics" in case]
    found = [*report.findings(cases, limits), *report.grown(cases, before)]
    document = {
        "format": FORMAT,
        "versions": runs.versions,
        "seconds": round(time.monotonic() - start, 1),
        "cases": seen,
        "transfers": report.transfers(cases),
        "findings": [vars(one) for one in found],
    }
    for path in (folder / "tune-report.json", args.json):
        if path:
            write_json(path, document)
    for path in (folder / "tune-report.md", args.markdown):
        if path:
            write_whole(path, report.markdown(cases, found))
    show(_shown(seen, document, found, folder))
    return report.exit_code(seen, found)


def _cases_of(path: Path) -> list[dict[str, Any]]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise RunError(f"--base={path}: is no file of tune-report --json")
    return [case for case in document["cases"] if "tactics" in case]


def _shown(
    seen: Sequence[dict[str, Any]], document: dict[str, Any], found: Sequence[Finding], folder: Path
) -> Iterator[str]:
    yield from report.lines([case for case in seen if "tactics" in case])
    for case in seen:
        for why in ("skipped", "failed"):
            if why in case:
                yield f"{why} {case['case']}: {case[why]}"
    for one in document["transfers"][:MOST_TRANSFERS]:
        cost = report.percent(one["regret"])
        yield f"the best tactic of {one['best_of']} used in {one['used_in']} ({one['flag']} differs): {cost}"
    yield from ("", *(one.line for one in found))
    yield f"{counted(len(seen), 'case')} in {document['seconds']:.0f} s, results and logs in {folder}"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf tune-report",
        usage="flashinfer-perf tune-report [OPTIONS] -- PYTEST_ARGS",
        description="Time every tactic that FlashInfer's tuner could choose for these cases, and show what its choices "
        "cost: its default, what fresh processes tune, and what a cache file says. Exits with 0, with 1 if a choice is "
        "wrong or breaks a limit of [thresholds] (max_regret, max_flips) or a default became worse than in --base, "
        "with 2 if a case failed or no case has tactics.",
        epilog=EXAMPLE,
    )
    made.add_argument(
        "--budget",
        type=SECONDS,
        default=30.0,
        metavar="SECONDS",
        help="For the race of one case; the first round is finished for what is in use. Default: %(default)g.",
    )
    made.add_argument(
        "--tunes", type=whole(0), default=5, metavar="N", help="Fresh processes that tune. Default: %(default)s."
    )
    made.add_argument("--cache", type=Path, metavar="FILE", help="Judge the entries of this file of autotune(cache=).")
    made.add_argument(
        "--write-cache", type=Path, metavar="FILE", help="Write the best tactics to a new file of autotune(cache=)."
    )
    made.add_argument(
        "--base", type=Path, metavar="FILE", help="An earlier --json, to compare defaults and tactics with."
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="Write the report as JSON.")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="Write the report as Markdown.")
    judging.add_output(made, "tune-report")
    judging.add_settings(made)
    return made
