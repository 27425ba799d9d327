"""Run a command line of `flashinfer_benchmark.py`, or of `flashinfer-bench run`, as a session of pytest."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import pytest

from pytest_flashinfer_perf.api import commands, processes
from pytest_flashinfer_perf.cli import QUIETLY, NotAllSkipped, SelectedTests, of_suite
from pytest_flashinfer_perf.extensions.many.gpus import GPU_WORKERS
from pytest_flashinfer_perf.extensions.testlists.printed_lines import UpstreamLines
from pytest_flashinfer_perf.extensions.testlists.upstream import SCRIPT
from pytest_flashinfer_perf.spec import flags

SHARED = ("-o", f"{GPU_WORKERS}=true")  # GPUs, by the workers of -n auto
USAGE = "FLAGS [-- PYTEST_ARGS]"
DESCRIPTION = (
    f"Run a command line of {SCRIPT}, with or without `python3 {SCRIPT}` in front. Flags beside --testlist are "
    "added to every line of the file; the line's own flags win. Arguments behind -- are passed to pytest."
)
EXAMPLE = "example: flashinfer-perf run --testlist my_benchmarks.txt --output_path run.csv -- -k bmm_fp8"


def main(arguments: Sequence[str]) -> int:
    """Run pytest, and print a line for each case as flashinfer_benchmark.py does."""
    if arguments[:1] in (["-h"], ["--help"]):
        commands.parser_of("run", DESCRIPTION, EXAMPLE, USAGE).parse_args(arguments)
    return int(pytest.main(as_pytest(arguments), plugins=[UpstreamLines(), SelectedTests(), NotAllSkipped()]))


def as_pytest(arguments: Sequence[str]) -> list[str]:
    """pytest's arguments: a single case selects tests of the suite, a testlist is a file of tests."""
    command, beside = processes.split(arguments)
    start = next((at + 1 for at, word in enumerate(command) if word.endswith(SCRIPT)), 0)
    words = command[start:]  # without the interpreter and the script
    if "--local" in words:
        return _for_data_set(words, beside)
    usage = f"flashinfer-perf run {USAGE}"
    parser = argparse.ArgumentParser("flashinfer-perf run", usage=usage, add_help=False, allow_abbrev=False)
    parser.add_argument("--testlist")
    parser.add_argument("--output_path")
    if not words:
        parser.error("nothing to measure: give --routine NAME and its flags, --testlist FILE or --local PATH")
    args, rest = parser.parse_known_args(words)
    written = [] if args.output_path is None else [f"--perf-csv={args.output_path}"]
    if args.testlist is None:
        return of_suite([f"--perf-case={flags.join(rest)}", *written, *beside])
    return [
        f"--perf-testlist={args.testlist}",
        f"--perf-flags={flags.join(rest)}",
        *QUIETLY,
        *SHARED,
        *written,
        *beside,
    ]


def _for_data_set(words: list[str], beside: Sequence[str]) -> list[str]:
    """pytest's arguments for those of `flashinfer-bench run`, whose flags are fields of its config."""
    parser = argparse.ArgumentParser("flashinfer-perf run --local PATH", allow_abbrev=False)
    parser.add_argument("--local", metavar="PATH", action="append", required=True)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True)
    for name in ("warmup-runs", "iterations", "num-trials", "rtol", "atol", "required-matched-ratio"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--timeout", dest="timeout_seconds")
    parser.add_argument("--use-isolated-runner", action=argparse.BooleanOptionalAction)
    parser.add_argument("--no-profile-baseline", dest="profile_baseline", action="store_const", const="false")
    for name in ("definitions", "solutions"):
        parser.add_argument(f"--{name}", nargs="+", type=json.dumps)
    options = vars(parser.parse_args(words))
    pytest_arguments = [f"--perf-trace-set={path}" for path in options.pop("local")]
    config = options.pop("config")
    pytest_arguments += [] if config is None else [f"--perf-trace-config={config}"]
    pytest_arguments += [] if options.pop("save_results") else ["--perf-trace-output="]
    for name, value in options.items():
        if value is not None:
            text = f"[{', '.join(value)}]" if isinstance(value, list) else value
            pytest_arguments.append(f"--perf-trace-option={name}={text}")
    return [*pytest_arguments, *QUIETLY, *SHARED, *beside]
