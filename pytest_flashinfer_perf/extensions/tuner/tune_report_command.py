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

FILES = {
    "--cache": "Judge the entries of this file of autotune(cache=).",
    "--write-cache": "Write the best tactics to a new file of autotune(cache=).",
    "--base": "The tune-report.json of an earlier report, to compare defaults and tactics with.",
}
EXAMPLE = "example: flashinfer-perf tune-report --tunes 10 -- tests/gemm -k 'mm_bf16 and cublaslt'"


def main(arguments: Sequence[str]) -> int:
    own, for_pytest = processes.split(arguments)
    args = parser().parse_args(own)
    limits = judging.in_settings(judging.settings(args)).thresholds
    _verify_files(args)
    before = results.read(args.base, "--base").cases if args.base else ()
    folder, gpu = sides.folder(args.output, "tune-report"), sides.gpu(for_pytest)
    cache, write = (str(path.resolve()) if path else None for path in (args.cache, args.write_cache))
    runs = Runs(for_pytest, args.tunes, TuneJob(budget=args.budget, cache=cache, write=write), folder)
    with sides.alone_on(gpu):
        cases, left_out = runs.cases()
    findings = *judge.findings(cases, limits), *judge.grown(cases, left_out, before, limits)
    tune_report = Report(results.FORMAT, runs.versions, tuple(cases), tuple(left_out), findings)
    file_io.write_json(folder / "tune-report.json", asdict(tune_report))
    counted = formatting.counted(len(cases), "case")
    printing.show([*report.lines(tune_report), f"{counted}, tune-report.json and logs in {folder}"])
    return judge.exit_code(cases, left_out, tune_report.findings)


def _verify_files(args: argparse.Namespace) -> None:
    """What would be known only after hours otherwise."""
    file_io.verify_outputs({"--write-cache": args.write_cache}, [path for path in (args.cache, args.base) if path])
    if args.cache and not args.cache.is_file():
        raise run_file.RunError(
            f"--cache={args.cache}: the file is not there, autotune(cache=) or --write-cache writes one"
        )
    if args.write_cache and args.write_cache.exists():
        raise run_file.RunError(f"--write-cache={args.write_cache}: the file is there, name a new one")


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "tune-report",
        "Time every tactic that FlashInfer's tuner could choose for these cases, and show what its choices "
        "cost: its default, what fresh processes tune, and what a cache file says. Exits with 0, with 1 if a choice is "
        "wrong or breaks max_regret of [thresholds] or a default became worse than in --base, "
        "with 2 if a case failed, a limit could not be judged, or no case has tactics.",
        EXAMPLE,
        usage="[OPTIONS] -- PYTEST_ARGS",
    )
    race = "For the race of one case; what is in use has two rounds in any case. Default: %(default)g."
    result.add_argument("--budget", type=options.SECONDS, default=30.0, metavar="SECONDS", help=race)
    fresh = "Fresh processes that tune. Default: %(default)s."
    result.add_argument("--tunes", type=options.whole(0), default=5, metavar="N", help=fresh)
    for name, meaning in FILES.items():
        result.add_argument(name, type=Path, metavar="FILE", help=meaning)
    judging.add_output(result, "tune-report")
    judging.add_settings(result)
    return result
