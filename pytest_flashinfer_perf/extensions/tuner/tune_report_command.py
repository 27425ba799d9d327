"""`flashinfer-perf tune-report`: what FlashInfer's tuner costs, tactic by tactic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, options, printing, processes, run_file
from pytest_flashinfer_perf.extensions.compare import judging, sides
from pytest_flashinfer_perf.extensions.tuner import judge, report, results
from pytest_flashinfer_perf.extensions.tuner.results import Report
from pytest_flashinfer_perf.extensions.tuner.runs import Runs
from pytest_flashinfer_perf.extensions.tuner.search import TuneJob

EXAMPLE = "example: flashinfer-perf tune-report --tunes 10 -- tests/gemm -k 'mm_bf16 and cublaslt'"


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    limits = judging.in_settings(judging.settings(args)).thresholds
    if args.cache and not args.cache.is_file():
        raise run_file.RunError(f"--cache={args.cache}: the file is not there, autotune(cache=) writes one")
    folder, gpu = sides.folder(args.output, "tune-report"), sides.gpu(for_pytest)
    cache = str(args.cache.resolve()) if args.cache else None
    runs = Runs(for_pytest, args.tunes, TuneJob(budget=args.budget, cache=cache), folder)
    with sides.alone_on(gpu):
        cases, left_out = runs.cases()
    findings = tuple(judge.findings(cases, limits))
    tune_report = Report(results.FORMAT, runs.versions, tuple(cases), tuple(left_out), findings)
    file_io.write_json(folder / "tune-report.json", asdict(tune_report))
    counted = formatting.counted(len(cases), "case")
    printing.show([*report.lines(tune_report), f"{counted}, tune-report.json and logs in {folder}"])
    return judge.exit_code(cases, left_out, tune_report.findings)


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "tune-report",
        "Time every tactic that FlashInfer's tuner could choose for these cases, and show what its choices "
        "cost: its default, what fresh processes tune, and what a cache file says. Exits with 0, with 1 if a choice is "
        "wrong or breaks max_regret of [thresholds], with 2 if a case failed, a limit could not be judged, or no case "
        "has tactics.",
        EXAMPLE,
        usage="[OPTIONS] -- PYTEST_ARGS",
    )
    race = "For the race of one case; what is in use has two rounds in any case. Default: %(default)g."
    result.add_argument("--budget", type=options.SECONDS, default=30.0, metavar="SECONDS", help=race)
    fresh = "Fresh processes that tune. Default: %(default)s."
    result.add_argument("--tunes", type=options.whole(0), default=5, metavar="N", help=fresh)
    entries = "Judge the entries of this file of autotune(cache=)."
    result.add_argument("--cache", type=Path, metavar="FILE", help=entries)
    judging.add_output(result, "tune-report")
    judging.add_settings(result)
    return result
