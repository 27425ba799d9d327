"""Programs whose cases and instruments give the times that a test names, for runs with `--perf-gate`."""

import json

from made import row

from pytest_flashinfer_perf.engine import instruments
from pytest_flashinfer_perf.machine import devices

THRESHOLDS = '[thresholds]\n"*" = { slower = "50%" }\n'
PROGRAM = """
import json
import os
import pathlib

import pytest
import torch

SAID = json.loads(pathlib.Path("said.json").read_text())


@pytest.mark.parametrize("name", SAID["cases"])
def test_it(perf, name):
    us = SAID["cases"][name]["FLASHINFER_PERF_CONFIRMS" in os.environ]
    if us is None:
        pytest.skip("cannot run here")
    if us == 0:
        pytest.xfail("a known bug")
    if us < 0:
        perf.time(lambda x: x, torch.zeros(1), reference=torch.ones(1))
    perf.time(lambda x: us * 1e-6, torch.zeros(1))


if SAID["plain"]:
    def test_plain(benchmark):
        benchmark.pedantic(lambda: None, rounds=3)
"""


TOLD = """
from pytest_flashinfer_perf.engine import instruments
from scripted import Scripted


class Told(Scripted):
    '''Believes what the timed call answers.'''

    def seconds_of(self, answer):
        return answer


instruments.INSTRUMENTS["wall"] = Told()
"""


BUSY = """
import json
import os
import pathlib

from pytest_flashinfer_perf.engine import instruments
from pytest_flashinfer_perf.machine.load import Reading


class Busy(Told):
    '''The same beside processes that take the share of a core that is said.'''

    def sample(self, work, count, warmup):
        waited = json.loads(pathlib.Path("waited.json").read_text())["FLASHINFER_PERF_CONFIRMS" in os.environ]
        start, end = (Reading(at, 0.0, 2, waited={"1": at * waited}, others=6) for at in (0.0, 1.0))
        work.watch.spans.append((start, end))
        return super().sample(work, count, warmup)


instruments.INSTRUMENTS["wall"] = Busy()
"""


def as_told(name, us):
    """The row of `perf.time` under this instrument."""
    nodeid = f"test_told.py::test_it[{name}]"
    how = {"instrument": "wall", "cold_l2": "rotate", "cuda_graph": False, "seed": None, "bound": None}
    cpu = {"gpu_uuid": None, "device_name": devices.find("cpu").name, "device": "cpu"}
    return {**row(nodeid, us=us, stddev=0.0, **how, **cpu), "fullname": nodeid}


def prepared(session, pytester, monkeypatch):
    """Runs pytest on cases that take what is said, in microseconds; a second number is of processes that confirm."""
    monkeypatch.setitem(instruments.INSTRUMENTS, "wall", instruments.INSTRUMENTS["wall"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(pytester.path / "cache"))
    pytester.makeconftest(TOLD)
    pytester.makepyfile(test_told=PROGRAM)
    pytester.makefile(".toml", **{"flashinfer-perf": THRESHOLDS})

    def run(*options, plain=False, **cases):
        told = {name: us if isinstance(us, list) else [us] * 2 for name, us in cases.items()}
        (pytester.path / "said.json").write_text(json.dumps({"cases": told, "plain": plain}))
        return session("--perf-iters=5", *options)

    return run
