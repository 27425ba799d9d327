"""Options, rules and output that the commands with verdicts share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pytest_flashinfer_perf.api import Run, file_io, loading, match, option, options, printing, verdict, words
from pytest_flashinfer_perf.extensions.compare import document, markdown
from pytest_flashinfer_perf.settings import project_file

WRITERS = {"markdown": markdown.text, "json": document.text}
WRITTEN_AS = {"markdown": "Markdown", "json": "JSON"}


def add_settings(parser: argparse.ArgumentParser) -> None:
    default = "Default: flashinfer-perf.toml, or [tool.flashinfer-perf] of pyproject.toml, in the current folder."
    settings = f"Settings file with a section [thresholds]. {default}"
    parser.add_argument("--perf-config", metavar="FILE", help=settings)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    options.ALLOW.add_by(parser.add_argument)
    options.STRICT.add_by(parser.add_argument)
    for name in WRITERS:
        written = f"Write the verdicts as {WRITTEN_AS[name]} to FILE."
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=written)


def rules(args: argparse.Namespace, *, paired: bool, runs: Iterable[Run] = ()) -> verdict.Rules:
    """The rules by which verdicts are made.

    What is to be written may be none of the files that they are read from, nor of these runs.
    """
    project = settings(args)
    read = [Path(run.source) for run in runs]
    outputs = {f"--{name}": getattr(args, name, None) for name in WRITERS}
    file_io.verify_outputs(outputs, [*read, project.path] if project.path else read)
    of_project, allowed = in_settings(project), match.allowed(args.perf_gate_allow)
    return replace(of_project, allowed=allowed, strict=args.perf_gate_strict, paired=paired)


def settings(args: argparse.Namespace) -> project_file.ProjectFile:
    return project_file.find(Path.cwd(), args.perf_config)


def in_settings(project: project_file.ProjectFile | None = None) -> verdict.Rules:
    """The limits of the settings file, by default that of the current folder; those of all extensions too."""
    return verdict.read_rules(project or project_file.find(Path.cwd()), loading.manager().hook)


def publish(judgement: verdict.Judgement, args: argparse.Namespace) -> int:
    """Write the verdicts to the terminal, to GitHub and to files, and return the exit code."""
    printing.show(words.lines(judgement))
    printing.print_raw("".join(f"{line}\n" for line in markdown.publish(judgement)))
    for name, text in WRITERS.items():
        if getattr(args, name):
            file_io.write_whole(getattr(args, name), text(judgement))
    return judgement.exit_code


def keep(judgement: verdict.Judgement, folder: Path) -> None:
    """Write the verdicts beside the results that they are of."""
    for name, suffix in (("json", "json"), ("markdown", "md")):
        file_io.write_whole(folder / f"verdicts.{suffix}", WRITERS[name](judgement))


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
    parser.add_argument("--pairs", type=options.whole(1), default=5, metavar="N", help=sure)
    parser.add_argument("--most-pairs", type=options.whole(1), default=10, metavar="N", help=unsure)
