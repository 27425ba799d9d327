"""When there are enough samples: exactly as many as asked, or until the mean is known well enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

FEWEST = 30
MOST = 300
KERNEL_SECONDS = 1.0
PRECISION = 0.005


def collect(sample: Callable[[int], Sequence[float]], iters: int | None) -> list[float]:
    """Call `sample` for batches of durations until there are enough."""
    samples = list(sample(FEWEST if iters is None else iters))
    while iters is None and (more := wanted(samples)):
        samples += sample(more)
    return samples


def wanted(samples: Sequence[float]) -> int:
    """How many more samples bring the standard error of the mean below half a percent of it; 0 when it is there."""
    n, mean = len(samples), statistics.fmean(samples)
    if n >= MOST or math.fsum(samples) >= KERNEL_SECONDS:
        return 0
    needed = (statistics.stdev(samples) / (PRECISION * mean)) ** 2
    affordable = n + math.ceil((KERNEL_SECONDS - math.fsum(samples)) / mean)
    return max(0, min(math.ceil(needed), affordable, MOST) - n)
