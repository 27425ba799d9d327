"""The spread of samples, the precision of their median, and why a case counts as noisy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_flashinfer_perf.machine.load import Contention

OF_NORMAL = math.sqrt(math.pi / 2)  # the error of a median of one sample, in standard deviations
MEDIAN_ERROR = OF_NORMAL / 1.349  # and in interquartile ranges
NOISY = 0.05
QUIETEST = 1e-4  # a clock ticks: agreement to better than 0.01 % is luck
LEAST = 1e-15


def is_measured(value: float) -> bool:
    """Whether a number of seconds, cycles or GHz can be one that was measured, rather than zero, infinite or NaN."""
    return LEAST < value < 1 / LEAST


def median_error(middle: float, count: int) -> float:
    """The error of the median of this many samples, from their interquartile range."""
    return MEDIAN_ERROR * middle / math.sqrt(count)


def relative_error(samples: Sequence[float], spread: float | None = None, rounds: int = 1) -> float:
    """The error of their median, as a share of it; where a file has no samples, by their spread and number."""
    if len(samples) < 2:
        return OF_NORMAL * (spread or 0.0) / math.sqrt(max(1, rounds))
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    return median_error((high - low) / middle, len(samples)) if middle else math.inf


def spread(samples: Sequence[float]) -> float | None:
    """The standard deviation of the samples over their mean; None for a single one."""
    return statistics.stdev(samples) / statistics.fmean(samples) if len(samples) > 1 else None


def is_noisy(samples: Sequence[float], instrument: str) -> bool:
    """Whether the samples scatter too much. On the host's clock single late calls do not count: the median stays."""
    if len(samples) < 2:
        return False
    return (relative_error(samples) if instrument == "wall" else spread(samples) or 0.0) > NOISY


def noise(instrument: str, contention: Contention | None = None) -> str:
    """Say why the samples are not trusted."""
    if contention is not None and contention.is_loaded:
        return contention.sentence
    if instrument == "wall":
        return f"by the host's clock the median is not known to {100 * NOISY:g} %"
    return f"the spread stayed above {100 * NOISY:g} %"
