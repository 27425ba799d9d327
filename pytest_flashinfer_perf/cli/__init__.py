"""Measure FlashInfer's kernels, check their answers and compare runs, from a terminal."""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.cli import commands
from pytest_flashinfer_perf.errors import require
from pytest_flashinfer_perf.extensions.testlists.printed_lines import UpstreamLines
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.plugin import cases, named_files
from pytest_flashinfer_perf.settings.usage import errors_of_use
from pytest_flashinfer_perf.spec import flags

NO_NUMPY = "ignore:Failed to initialize NumPy:UserWarning"  # by torch; nothing here needs numpy
QUIETLY = ("--import-mode=importlib", "--benchmark-quiet", "-o", "perf_gpu_workers=true", "-W", NO_NUMPY)
SCRIPT = "flashinfer_benchmark.py"
RUN_USAGE = "flashinfer-perf run FLAGS [-- PYTEST_ARGS]"
RUN_EXAMPLE = "example: flashinfer-perf run --testlist my_benchmarks.txt --output_path run.csv -- -k bmm_fp8"
BENCH_USAGE = "flashinfer-perf bench [PYTEST_ARGS]"
BENCH_EXAMPLE = "example: flashinfer-perf bench -k 'decode and fa3' --perf-suite=smoke --benchmark-json=run.json"


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is None:  # the command is the whole process
        atexit.register(gc.freeze)  # or its end looks at all of torch and FlashInfer: 0.5 s and 1 s
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in commands.all_commands():
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
    suite = (
        "Run the performance suite, from a checkout or a wheel. All arguments are passed to pytest; `pytest --help` "
        "explains those that begin with --perf. Exits with pytest's code, and with 5 if every case was skipped."
    )
    script = (
        f"Run a command line of {SCRIPT}, with or without `python3 {SCRIPT}` in front. Flags beside --testlist are "
        "added to every line of the file; the line's own flags win. Arguments behind -- are passed to pytest."
    )
    of_pytest = {
        "bench": (BENCH_USAGE, suite, BENCH_EXAMPLE, "Run the performance suite. All arguments are passed to pytest."),
        "run": (RUN_USAGE, script, RUN_EXAMPLE, f"Run a command line of {SCRIPT}, FlashInfer's own benchmark."),
    }
    for name, (usage, description, example, short) in of_pytest.items():
        known.add_parser(
            name,
            help=short,
            usage=usage,
            description=description,
            epilog=example,
            formatter_class=commands.HelpFormatter,
        )
    for command in commands.all_commands().values():
        known.add_parser(command.name, help=command.help, add_help=False)
    return parser


class NotAllSkipped:
    """A run in which every test was skipped exits like one without tests: it has measured nothing."""

    def __init__(self) -> None:
        self._outcomes: set[str] = set()

    def pytest_configure(self) -> None:
        with errors_of_use():
            require("torch")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.skipped:
            self._outcomes.add("xfailed" if hasattr(report, "wasxfail") else report.outcome)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._outcomes == {"skipped"} and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def run(arguments: Sequence[str]) -> int:
    """Run pytest, and print a line for each case as flashinfer_benchmark.py does."""
    return int(pytest.main(as_pytest(arguments), plugins=[UpstreamLines(), AskedTests(), NotAllSkipped()]))


def as_pytest(arguments: Sequence[str]) -> list[str]:
    """pytest's arguments: a single case selects tests of the suite, a testlist is a file of tests."""
    command, beside = processes.split(arguments)
    start = next((at + 1 for at, word in enumerate(command) if word.endswith(SCRIPT)), 0)
    words = command[start:]  # without the interpreter and the script
    if "--local" in words:
        return _for_data_set(words, beside)
    known = argparse.ArgumentParser("flashinfer-perf run", usage=RUN_USAGE, add_help=False, allow_abbrev=False)
    known.add_argument("--testlist")
    known.add_argument("--output_path")
    if not words:
        known.error("nothing to measure: give --routine NAME and its flags, --testlist FILE or --local PATH")
    args, rest = known.parse_known_args(words)
    written = [] if args.output_path is None else [f"--perf-csv={args.output_path}"]
    if args.testlist is None:
        return of_suite([f"--perf-case={flags.join(rest)}", *written, *beside])
    return [f"--perf-testlist={args.testlist}", f"--perf-flags={flags.join(rest)}", *QUIETLY, *written, *beside]


def _for_data_set(words: list[str], beside: Sequence[str]) -> list[str]:
    """pytest's arguments for those of `flashinfer-bench run`, whose flags are fields of its config."""
    known = argparse.ArgumentParser("flashinfer-perf run --local PATH", allow_abbrev=False)
    known.add_argument("--local", metavar="PATH", action="append", required=True)
    known.add_argument("--config", metavar="FILE")
    known.add_argument("--save-results", action=argparse.BooleanOptionalAction, default=True)
    for name in ("warmup-runs", "iterations", "num-trials", "rtol", "atol", "required-matched-ratio"):
        known.add_argument(f"--{name}")
    known.add_argument("--timeout", dest="timeout_seconds")
    known.add_argument("--use-isolated-runner", action=argparse.BooleanOptionalAction)
    known.add_argument("--resume", action="store_const", const="true")
    known.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    known.add_argument("--no-profile-baseline", dest="profile_baseline", action="store_const", const="false")
    for name in ("definitions", "solutions"):
        known.add_argument(f"--{name}", nargs="+", type=json.dumps)
    options = vars(known.parse_args(words))
    made = [f"--perf-trace-set={path}" for path in options.pop("local")]
    config = options.pop("config")
    made += [] if config is None else [f"--perf-trace-config={config}"]
    made += [] if options.pop("save_results") else ["--perf-trace-output="]
    for name, value in options.items():
        if value is not None:
            text = f"[{', '.join(value)}]" if isinstance(value, list) else value
            made.append(f"--perf-trace-option={name}={text}")
    return [*made, *QUIETLY, *beside]


def bench(arguments: Sequence[str]) -> int:
    return int(pytest.main(of_suite(arguments), plugins=[AskedTests(), NotAllSkipped()]))


class AskedTests:
    """Puts the tests that options ask for into the place of the suite's folders, by which pytest has begun."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        suite = list(map(str, cases.paths()))
        if config.args[: len(suite)] == suite:
            config.args[: len(suite)] = named_files.asked_paths(config) or suite


def of_suite(arguments: Sequence[str]) -> list[str]:
    """The suite, or what an extension collects instead of it, with the suite's root as rootdir, for the same ids as in
    a checkout; caches stay in the current folder.
    """
    here = Path.cwd()
    cache = [] if "no:cacheprovider" in arguments else ["-o", f"cache_dir={here / '.pytest_cache'}"]
    outputs = [*cache, f"--benchmark-storage=file://{here / '.benchmarks'}"]
    collects = loading.manager().hook.pytest_perf_argument
    is_other = any(collects(path=Path(word.partition("::")[0])) for word in arguments if not word.startswith("-"))
    tests = [] if is_other else map(str, cases.paths())
    return [*tests, f"--rootdir={cases.root()}", *QUIETLY, *outputs, *arguments]


OF_PYTEST = {"bench": bench, "run": run}
