"""What the commands that judge have in common: their options, the rules those make, and where verdicts are written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.config.project_file import ProjectFileError
from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.gate import (
    calibration,
    document,
    explain,
    github,
    junit,
    likeness,
    markdown,
    table,
    thresholds,
)
from pytest_flashinfer_perf.gate.calibration import CalibrationError
from pytest_flashinfer_perf.gate.likeness import AllowError
from pytest_flashinfer_perf.gate.verdict import Judgement, Rules
from pytest_flashinfer_perf.runs.run_file import RunError

ERRORS = (RunError, ProjectFileError, AllowError, CalibrationError, OSError)
WRITERS = {"markdown": markdown.text, "json": document.text, "junit": junit.text}


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--perf-config", metavar="FILE", help="settings file with [thresholds] (flashinfer-perf.toml)")
    parser.add_argument("--perf-calibration", metavar="FILE", default=calibration.AUTO, help="or auto, or none")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--perf-gate-allow", metavar="A,B", default="", help=", ".join(likeness.ALLOWABLE))
    parser.add_argument("--perf-gate-strict", action="store_true", help="AMBIGUOUS is an error (exit code 2)")
    parser.add_argument("--explain", metavar="CASE", help="print every number that led to this case's verdict; a glob")
    for name in WRITERS:
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=f"write the verdicts as {name}")


def rules(said: argparse.Namespace, gpus: Iterable[str | None], *, paired: bool) -> Rules:
    """Calibrations are of the GPUs that measured."""
    return Rules(
        thresholds=thresholds.read(project_file.find(Path.cwd(), said.perf_config)),
        allowed=likeness.allowed(said.perf_gate_allow),
        strict=said.perf_gate_strict,
        paired=paired,
        calibrations=tuple(calibration.find(said.perf_calibration, gpus)),
    )


def told(judgement: Judgement, said: argparse.Namespace) -> int:
    """To the terminal, to GitHub, to files; the exit code."""
    shown = table.lines(judgement) if said.explain is None else explain.lines(judgement, said.explain)
    sys.stdout.writelines(f"{line}\n" for line in (*shown, *github.told(judgement)))
    for name, text in WRITERS.items():
        if getattr(said, name):
            write_whole(getattr(said, name), text(judgement))
    return judgement.exit_code
