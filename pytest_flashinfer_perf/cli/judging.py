"""Options, rules and output that the commands with verdicts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.files import verify_outputs, write_whole
from pytest_flashinfer_perf.gate import document, markdown, match, read, terminal
from pytest_flashinfer_perf.gate import rules as gate_rules
from pytest_flashinfer_perf.gate.verdict import Judgement, Rules
from pytest_flashinfer_perf.printing import print_raw, show
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.option import ALLOW, STRICT, option, whole
from pytest_flashinfer_perf.settings.project_file import ProjectFile

WRITERS = {"markdown": markdown.text, "json": document.text, "junit": document.junit_xml}
WRITTEN_AS = {"markdown": "Markdown", "json": "JSON", "junit": "JUnit XML"}


def add_settings(parser: argparse.ArgumentParser) -> None:
    default = "Default: flashinfer-perf.toml, or [tool.flashinfer-perf] of pyproject.toml, in the current folder."
    settings = f"Settings file with a section [thresholds]. {default}"
    parser.add_argument("--perf-config", metavar="FILE", help=settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    ALLOW.add_by(parser.add_argument)
    STRICT.add_by(parser.add_argument)
    explain = "Print every number that led to the verdicts of cases that match this pattern."
    parser.add_argument("--explain", metavar="GLOB", help=explain)
    for name in WRITERS:
        written = f"Write the verdicts as {WRITTEN_AS[name]} to FILE."
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=written)


def rules(args: argparse.Namespace, *, paired: bool, runs: Iterable[Run] = ()) -> Rules:
    """The rules by which verdicts are made.

    What is to be written may be none of the files that they are read from, nor of these runs.
    """
    project = settings(args)
    read = [Path(run.source) for run in runs]
    outputs = {f"--{name}": getattr(args, name, None) for name in WRITERS}
    verify_outputs(outputs, [*read, project.path] if project.path else read)
    found, allowed = in_settings(project), match.allowed(args.perf_gate_allow)
    return replace(found, allowed=allowed, strict=args.perf_gate_strict, paired=paired)


def settings(args: argparse.Namespace) -> ProjectFile:
    return project_file.find(Path.cwd(), args.perf_config)


def in_settings(project: ProjectFile | None = None) -> Rules:
    """The limits of the settings file, by default that of the current folder; those of all extensions too."""
    return gate_rules.read(project or project_file.find(Path.cwd()), loading.manager().hook)


def runs(names: Iterable[str | Path], storage: Path = read.STORAGE) -> list[Run]:
    """Those of files, folders and names in pytest-benchmark's storage, in this order, each of them once."""
    return read.read(names, storage)


def publish(judgement: Judgement, args: argparse.Namespace) -> int:
    """Write the verdicts to the terminal, to GitHub and to files, and return the exit code."""
    shown = terminal.lines(judgement) if args.explain is None else terminal.explanation(judgement, args.explain)
    show(shown)
    print_raw("".join(f"{line}\n" for line in markdown.publish(judgement)))
    for name, text in WRITERS.items():
        if getattr(args, name):
            write_whole(getattr(args, name), text(judgement))
    return judgement.exit_code


def keep(judgement: Judgement, folder: Path) -> None:
    """Write the verdicts beside the results that they are of."""
    for name, suffix in (("json", "json"), ("markdown", "md")):
        write_whole(folder / f"verdicts.{suffix}", WRITERS[name](judgement))


# Options of the commands that start processes to measure in.

PYTHON = option(
    "--python",
    default=sys.executable,
    metavar="CMD",
    help="Folder of a virtual environment, a Python, or a command to measure with. Default: this Python.",
)


def add_output(parser: argparse.ArgumentParser, command: str) -> None:
    default = f"New folder for results and logs. Default: {command}-DATE-TIME."
    parser.add_argument("--output", type=Path, metavar="DIR", help=default)


def add_pairs(parser: argparse.ArgumentParser) -> None:
    sure = "Measure up to N pairs of base and head, fewer for a case whose verdict is certain. Default: %(default)s."
    unsure = "Go on up to N pairs for cases that are AMBIGUOUS after --pairs. Default: %(default)s."
    parser.add_argument("--pairs", type=whole(1), default=5, metavar="N", help=sure)
    parser.add_argument("--most-pairs", type=whole(1), default=10, metavar="N", help=unsure)
