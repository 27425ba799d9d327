"""Programs whose cases and instruments give the times that a test names, for runs with `--perf-gate`."""

from made import row

from pytest_flashinfer_perf.machine import devices

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


HOSTS = """
import json
import os
import pathlib

from pytest_flashinfer_perf.extensions.host.host_time import HostTime
from pytest_flashinfer_perf.extensions.host import host


def told(_target, _device, _on_device, _calls):
    us = json.loads(pathlib.Path("hosts.json").read_text())["FLASHINFER_PERF_CONFIRMS" in os.environ]
    return HostTime(us, (0.99 * us, us, 1.01 * us), False, references_us=(20.0,) * 3), ""


host.measured = told
"""


def as_told(name, us):
    """The row of `perf.time` under this instrument."""
    nodeid = f"test_told.py::test_it[{name}]"
    how = {"instrument": "wall", "cold_l2": "rotate", "cuda_graph": False, "seed": None, "bound": None}
    cpu = {"gpu_uuid": None, "device_name": devices.find("cpu").name, "device": "cpu"}
    return {**row(nodeid, us=us, stddev=0.0, **how, **cpu), "fullname": nodeid}
