"""FlashInfer's own benchmark script: its command lines, its CSV and the lines that it prints."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options, stash

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command
    from pytest_flashinfer_perf.spec.case import Case, FlagLine
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

USES = ("apis", "many")  # which many of its routines are here; its command gives each worker a GPU


def file(text: str) -> str:
    if text and Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder: name its files, as {TESTLIST.name}={text}/FILE")
    return text


TESTLIST = option(
    "--perf-testlist",
    reads=True,
    metavar="FILE",
    type=file,
    **options.REPEATABLE,
    help="Run each line of this file, written in the flags of flashinfer_benchmark.py (repeatable).",
)
FLAGS = option(
    "--perf-flags",
    may_be_empty=True,
    metavar="FLAGS",
    default="",
    help="Flags to add to every line of the testlists; the line's own flags win.",
)
CSV = option(
    "--perf-csv",
    child=Child.NONE,
    writes="",
    metavar="FILE",
    help="Write the rows as CSV to FILE, with the columns of flashinfer_benchmark.py.",
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.CASES: (TESTLIST, FLAGS), options.FILES: (CSV,)}


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    sentence = "Run a command line of flashinfer_benchmark.py, FlashInfer's own benchmark."
    return (Command("run", sentence, f"{__name__}.run_command:main", "measure"),)


# Files of lines.


def pytest_configure(config: pytest.Config) -> None:
    """Add the files of the option to those that are named, and begin the file of rows."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.args.extend(config.getoption(TESTLIST.dest))
    path = config.getoption(CSV.dest)
    if path and not (config.option.collectonly or stash.is_worker(config)):
        from pytest_flashinfer_perf.extensions.testlists.csv_rows import CsvFile

        config.pluginmanager.register(CsvFile(config.invocation_params.dir / path), "flashinfer-perf-csv")


def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:
    """The files of the option; and a line of `--perf-case` may be of a routine that is an API here."""
    from pytest_flashinfer_perf.extensions import apis
    from pytest_flashinfer_perf.extensions.testlists.upstream import may_be_api

    words = (word for line in config.getoption("perf_case") for word in line.replace("=", " ").split())
    of_apis = [apis.tests()] if any(map(may_be_api, words)) else []
    return [*of_apis, *map(Path, config.getoption(TESTLIST.dest))]


def pytest_perf_collects(path: Path) -> bool | None:
    if path.suffix != ".txt" or not path.is_file():
        return None
    from pytest_flashinfer_perf.extensions.testlists import testlist

    return testlist.is_testlist(path) or None


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, list[pytest.Collector]]:
    """Collect a testlist before other plugins do, since doctest would take any .txt file."""
    others: list[pytest.Collector] = yield
    if not parent.session.isinitpath(file_path):
        return others
    here, files = parent.config.invocation_params.dir, parent.config.getoption(TESTLIST.dest)
    if not (any(file_path.samefile(here / name) for name in files) or pytest_perf_collects(file_path)):
        return others
    from pytest_flashinfer_perf.extensions.testlists.testlist import Testlist

    return [Testlist.from_parent(parent, path=file_path)]


# Single lines.


def pytest_perf_line(words: Sequence[str], routines: Mapping[str, AnyRoutine]) -> FlagLine | None:
    from pytest_flashinfer_perf.extensions import apis

    if apis.names_api(words):
        return None
    from pytest_flashinfer_perf.extensions.testlists import script_lines

    return script_lines.parse(list(words), routines)


def pytest_perf_repeat(case: Case) -> str | None:
    from pytest_flashinfer_perf.extensions.testlists import upstream_command

    return upstream_command.command(case)
