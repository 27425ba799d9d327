"""Options by which verdicts are made, of pytest and of the commands that compare files."""

from __future__ import annotations

from pytest_flashinfer_perf.config.option import option
from pytest_flashinfer_perf.gate import calibration
from pytest_flashinfer_perf.gate.likeness import ALLOWABLE

STRICT = option("--perf-gate-strict", action="store_true", help="Exit with 2 if a verdict is AMBIGUOUS.")
ALLOW = option(
    "--perf-gate-allow",
    metavar="A,B",
    default="",
    help=f"Compare in spite of these differences: {', '.join(ALLOWABLE)}. Default: none.",
)
CALIBRATION = option(
    "--perf-calibration",
    metavar="FILE",
    default=calibration.AUTO,
    help="This machine's noise, as `flashinfer-perf calibrate` wrote it. auto takes the one of this GPU in the "
    "user's cache, none ignores it. Default: %(default)s.",
)
