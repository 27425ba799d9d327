"""A pytest plugin that makes kernels slower: each timed call is followed by a kernel that only spins.

    SLOW_DOWN_BY=0.03 SLOW_DOWN_FROM=base.json PYTHONPATH=benchmarks pytest -p slow_down ...

The spinning kernel takes that share of the case's time in base.json, an earlier run; the shortest one takes what a
launch takes, about 1.4 us on an H200. What was planted is written beside that file, as base.json.planted-0.03.json.
"""

import functools
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from pytest_flashinfer_perf import fixture, walk
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.measurement import measure
from pytest_flashinfer_perf.settings import Measuring

LONG = 200_000  # cycles


@dataclass(frozen=True)
class Spin:
    """On a GPU `torch.cuda._sleep`, whose time is that of a launch and of its cycles; on a CPU a loop of the host."""

    launch: float
    per_cycle: float

    def call(self, seconds):
        """What to launch for it, and how long that takes."""
        if not self.per_cycle:
            return functools.partial(_busy, seconds), seconds
        cycles = max(1, round((seconds - self.launch) / self.per_cycle))
        return functools.partial(torch.cuda._sleep, cycles), self.launch + cycles * self.per_cycle  # noqa: SLF001


def _busy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@functools.cache
def spin(device):
    """Measured by the instrument of the cases."""
    if not device.is_gpu:
        return Spin(0.0, 0.0)
    how = Measuring(cold_l2="none", iters=100)
    spent = [measure(torch.cuda._sleep, (n,), measuring=how, device=str(device.torch)).median for n in (1, LONG)]  # noqa: SLF001
    return Spin(spent[0], (spent[1] - spent[0]) / LONG)


class SlowDown:
    def __init__(self, share, base):
        self.share, self.base, self.case, self.planted = share, base, "", {}
        self.rows = runs.read([base])[0].rows
        self.walk, self.measure = fixture.walk, walk.measure_target

    def walked(self, case, *arguments):
        self.case = f"{case.routine.name}/{case.id}"
        return self.walk(case, *arguments)

    def measured(self, target, *arguments, **said):
        device = next(one for one in arguments if isinstance(one, Device))
        median = self.rows[self.case].median
        extra, seconds = spin(device).call(self.share * median)
        self.planted[self.case] = {"median_us": median * 1e6, "planted_us": seconds * 1e6}

        def followed(*args, **kwargs):
            answer = target.function(*args, **kwargs)
            extra()
            return answer

        return self.measure(replace(target, function=followed), *arguments, **said)

    def pytest_sessionfinish(self):
        Path(f"{self.base}.planted-{self.share:g}.json").write_text(json.dumps(self.planted, indent=1))


def pytest_configure(config):
    plugin = SlowDown(float(os.environ["SLOW_DOWN_BY"]), os.environ["SLOW_DOWN_FROM"])
    fixture.walk, walk.measure_target = plugin.walked, plugin.measured
    config.pluginmanager.register(plugin)
