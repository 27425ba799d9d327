"""`flashinfer-perf`: the suite and its tools, from a terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from pytest_flashinfer_perf.cli import commands, processes
from pytest_flashinfer_perf.flashinfer_benchmark.upstream_lines import UpstreamLines
from pytest_flashinfer_perf.plugin import suite
from pytest_flashinfer_perf.spec import flags

NO_NUMPY = "ignore:Failed to initialize NumPy:UserWarning"  # torch's, of a package that nothing here needs
QUIETLY = ("--import-mode=importlib", "--benchmark-quiet", "-o", "perf_gpu_workers=true", "-W", NO_NUMPY)
SCRIPT = "flashinfer_benchmark.py"
RUN_USAGE = "flashinfer-perf run FLAGS [-- PYTEST_ARGS]"
RUN_EXAMPLE = "example: flashinfer-perf run --testlist my_benchmarks.txt --output_path run.csv -- -k bmm_fp8"
BENCH_EXAMPLE = "example: flashinfer-perf bench -k 'decode and fa3' --perf-suite=smoke --benchmark-json=run.json"


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in commands.HELP:
        return commands.main(words[0], words[1:])
    command = OF_PYTEST.get(words[0] if words else "")
    if command is not None and words[1:2] not in (["-h"], ["--help"]):
        return command(words[1:])
    _parser().parse_args(words)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("flashinfer-perf", description=__doc__)
    installed = metadata.version("pytest-flashinfer-perf")
    parser.add_argument("--version", action="version", version=f"pytest-flashinfer-perf {installed}")
    known = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, sentence in commands.HELP.items():
        known.add_parser(name, help=sentence, add_help=False)
    known.add_parser(
        "bench",
        usage="flashinfer-perf bench [PYTEST_ARGS]",
        help="run the performance suite; every argument is pytest's",
        description="Run the performance suite, from a checkout or a wheel. Every argument is pytest's.",
        epilog=BENCH_EXAMPLE,
    )
    known.add_parser(
        "run",
        usage=RUN_USAGE,
        help=f"measure what {SCRIPT} would, from the same flags",
        description=f"Takes a command line of {SCRIPT}, with or without its first words. Flags beside --testlist are "
        "said of every line, whose own win.",
        epilog=RUN_EXAMPLE,
    )
    return parser


class NotAllSkipped:
    """These commands measure: where all was skipped they end as pytest does where there is no test."""

    def __init__(self) -> None:
        self._outcomes: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped:
            self._outcomes.add("xfailed" if hasattr(report, "wasxfail") else report.outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._outcomes == {"skipped"} and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def run(arguments: Sequence[str]) -> int:
    """A case's line is printed as the old script has it, beside what pytest prints."""
    return int(pytest.main(as_pytest(arguments), plugins=[UpstreamLines(), NotAllSkipped()]))


def as_pytest(arguments: Sequence[str]) -> list[str]:
    """A single case is one of the suite; the lines of a testlist are tests of their own."""
    command, beside = processes.split(arguments)
    words = _without_start(command)
    if "--local" in words:
        return _of_data_set(words, beside)
    known = argparse.ArgumentParser("flashinfer-perf run", usage=RUN_USAGE, add_help=False, allow_abbrev=False)
    known.add_argument("--testlist")
    known.add_argument("--output_path")
    if not words:
        known.error("nothing to measure: give --routine NAME and its flags, --testlist FILE or --local PATH")
    said, rest = known.parse_known_args(words)
    written = [] if said.output_path is None else [f"--perf-csv={said.output_path}"]
    if said.testlist is None:
        return of_suite([f"--perf-case={flags.join(rest)}", *written, *beside])
    return [f"--perf-testlist={said.testlist}", f"--perf-flags={flags.join(rest)}", *QUIETLY, *written, *beside]


def _of_data_set(words: list[str], beside: Sequence[str]) -> list[str]:
    """flashinfer-bench's command: its flags are fields of the config."""
    known = argparse.ArgumentParser("flashinfer-perf run --local PATH", allow_abbrev=False)
    known.add_argument("--local", metavar="PATH", action="append", required=True)
    known.add_argument("--config", metavar="FILE")
    known.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True)
    for name in ("warmup-runs", "iterations", "num-trials", "rtol", "atol", "required-matched-ratio"):
        known.add_argument(f"--{name}")
    known.add_argument("--timeout", dest="timeout_seconds")
    known.add_argument("--use-isolated-runner", action=argparse.BooleanOptionalAction)
    known.add_argument("--no-profile-baseline", dest="profile_baseline", action="store_const", const="false")
    for name in ("definitions", "solutions"):
        known.add_argument(f"--{name}", nargs="+", type=json.dumps)
    said = vars(known.parse_args(words))
    made = [f"--perf-trace-set={path}" for path in said.pop("local")]
    config = said.pop("config")
    made += [] if config is None else [f"--perf-trace-config={config}"]
    made += [] if said.pop("save_results") else ["--perf-trace-output="]
    for name, value in said.items():
        if value is not None:
            text = f"[{', '.join(value)}]" if isinstance(value, list) else value
            made.append(f"--perf-trace-option={name}={text}")
    return [*made, *QUIETLY, *beside]


def _without_start(words: list[str]) -> list[str]:
    """The old command's flags alone."""
    start = next((at + 1 for at, word in enumerate(words) if word.endswith(SCRIPT)), 0)
    return words[start:]


def bench(arguments: Sequence[str]) -> int:
    return int(pytest.main(of_suite(arguments), plugins=[NotAllSkipped()]))


def of_suite(arguments: Sequence[str]) -> list[str]:
    """The suite's own folder gives the same ids as a checkout; what a run writes stays where the user is."""
    here = Path.cwd()
    outputs = ["-o", f"cache_dir={here / '.pytest_cache'}", f"--benchmark-storage=file://{here / '.benchmarks'}"]
    tests = [str(path) for path in suite.paths()]
    return [*tests, f"--rootdir={suite.root()}", *QUIETLY, *outputs, *arguments]


OF_PYTEST = {"bench": bench, "run": run}
COMMANDS = (*OF_PYTEST, *commands.HELP)
