"""The flag `--autotune`, for routines with a backend that FlashInfer's autotuner tunes."""

from __future__ import annotations

from typing import Any

from pytest_flashinfer_perf.spec.params import flag


def autotune() -> Any:
    return flag(
        "tune FlashInfer's kernels for the case before it is timed", default=False, letter="autotune", draw=(False,)
    )
