"""Measure FlashInfer's kernels, check their answers and compare runs, from a terminal."""

from __future__ import annotations

import argparse
import atexit
import gc
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.cli import commands
from pytest_flashinfer_perf.errors import require
from pytest_flashinfer_perf.plugin import cases, hooks
from pytest_flashinfer_perf.settings.option import GROUPS, Command
from pytest_flashinfer_perf.settings.usage import errors_of_use

NO_NUMPY = "ignore:Failed to initialize NumPy:UserWarning"  # by torch; nothing here needs numpy
QUIETLY = ("--import-mode=importlib", "--benchmark-quiet", "-W", NO_NUMPY)
BENCH_USAGE = "flashinfer-perf bench [PYTEST_ARGS]"
BENCH = Command(
    "bench", "Run the performance suite. All arguments are passed to pytest.", f"{__name__}:bench", GROUPS[0]
)
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
    grouped = "\n".join(_grouped([BENCH, *commands.all_commands().values()]))
    parser = argparse.ArgumentParser(
        "flashinfer-perf", description=__doc__, epilog=grouped, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    installed = metadata.version("pytest-flashinfer-perf")
    parser.add_argument("--version", action="version", version=f"pytest-flashinfer-perf {installed}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    suite = (
        "Run the performance suite, from a checkout or a wheel. All arguments are passed to pytest; "
        "`flashinfer-perf options` explains those that begin with --perf. "
        "Exits with pytest's code, and with 5 if every case was skipped."
    )
    subparsers.add_parser(
        BENCH.name,
        usage=BENCH_USAGE,
        description=commands.filled(suite),
        epilog=BENCH_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for command in commands.all_commands().values():
        subparsers.add_parser(command.name, add_help=False)
    return parser


def _grouped(all_commands: Sequence[Command]) -> Iterator[str]:
    for group in GROUPS:
        yield f"{group}:"
        for one in all_commands:
            if one.group == group:
                begin, width = f"  {one.name:<12} ", shutil.get_terminal_size().columns - 2
                yield textwrap.fill(one.help, width, initial_indent=begin, subsequent_indent=" " * len(begin))


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


def bench(arguments: Sequence[str]) -> int:
    return int(pytest.main(of_suite(arguments), plugins=[SelectedTests(), NotAllSkipped()]))


class SelectedTests:
    """Puts the tests that options select into the place of the suite's folders, by which pytest has begun."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        suite = list(map(str, cases.paths()))
        if config.args[: len(suite)] == suite:
            config.args[: len(suite)] = hooks.selected_paths(config) or suite


def of_suite(arguments: Sequence[str]) -> list[str]:
    """The suite, or what an extension collects instead of it, with the suite's root as rootdir, for the same ids as in
    a checkout; caches stay in the current folder.
    """
    here = Path.cwd()
    cache = [] if "no:cacheprovider" in arguments else ["-o", f"cache_dir={here / '.pytest_cache'}"]
    outputs = [*cache, f"--benchmark-storage=file://{here / '.benchmarks'}"]
    collects = loading.manager().hook.pytest_perf_collects
    is_other = any(collects(path=Path(word.partition("::")[0])) for word in arguments if not word.startswith("-"))
    tests = [] if is_other else map(str, cases.paths())
    return [*tests, f"--rootdir={cases.root()}", *QUIETLY, *outputs, *arguments]


OF_PYTEST = {"bench": bench}
