"""Options by which verdicts are made, of pytest and of the commands that compare files."""

from __future__ import annotations

from pytest_flashinfer_perf.config.option import option

STRICT = option("--perf-gate-strict", action="store_true", help="Exit with 2 if a verdict is AMBIGUOUS.")
ALLOW = option(
    "--perf-gate-allow",
    metavar="A,B",
    default="",
    help="Do not exit with 2 for these: cases that are missing, deselected or invalid, or another GPU, driver or "
    "setting. An unknown name lists those that there are. Default: none.",
)
