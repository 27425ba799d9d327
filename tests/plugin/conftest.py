import functools
import gc
import importlib
import os
import pkgutil

import cpuinfo
import decode_cases
import pytest
import torch
from hypothesis import settings

import pytest_flashinfer_perf as package
import pytest_flashinfer_perf.plugin.fixture
from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.routines.moe.cutlass import cutlass_moe
from pytest_flashinfer_perf.spec.routine import LaunchOptions

os.environ.pop("PYTEST_XDIST_WORKER", None)  # the sessions that tests start are nobody's workers
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # and no job's
for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
    importlib.import_module(module.name)  # what pytester finds imported, it leaves: a class is one object in all tests
importlib.import_module("torch._dynamo")  # torch imports it when it counts an API's first FLOPs, and cannot do so twice
capability.flashinfer_import_error()  # and its modules in C++ end a process that imports them twice
cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)  # or each session that writes a file starts six programs
gc.freeze()  # each case ends with a collection of garbage: all these modules are none

# A machine that does other things besides is no reason for a test to fail.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True)
def _planted_backends_go():
    """What a test declares beside a routine's own, sessions that it starts included."""
    before = {name: dict(routine.backends) for name, routine in all_routines().items()}
    yield
    for name, routine in all_routines().items():
        routine.backends.clear()
        routine.backends.update(before[name])


@pytest.fixture
def cpu():
    return devices.find("cpu")


@pytest.fixture
def hopper(cpu):
    """What an H200 says of itself, for decisions that need no H200."""
    return Device(cpu.torch, "NVIDIA H200", (9, 0), "GPU-0", 60 << 20, 132)


@pytest.fixture
def blackwell(cpu):
    return Device(cpu.torch, "NVIDIA B200", (10, 0), "GPU-0", 126 << 20, 148)


@pytest.fixture
def routine():
    return decode


class OnCpu:
    """A routine with one output: its inputs, what a backend makes of them, and what the check says of that."""

    def __init__(self, routine):
        self.routine = routine

    def inputs(self, p, seed=42):
        return self.routine.inputs(p, torch.Generator().manual_seed(seed), torch.device("cpu"))

    def launched(self, p, x, backend="torch"):
        """The output, or nothing where the backend is a stand-in of the library's function."""
        check.poison(self.routine.outputs(x))
        built = self.routine.backends[backend].build(p, x, LaunchOptions(backend, cuda_graph=False))
        built.launch(x if built.takes is None else built.takes)
        return self.routine.outputs(x)[0]

    def rule(self, p, out, x, backend="torch"):
        """The rule that is broken; none where the answer is right."""
        return check.compare(out, self.routine.reference(p, x)[0], *self.routine.tolerances(p, backend)).rule


@pytest.fixture(scope="session")
def on_cpu():
    return OnCpu


@pytest.fixture(scope="session")
def moe(on_cpu):
    return on_cpu(cutlass_moe)


@pytest.fixture
def suite(pytester):
    """A test file with two small cases of decode."""
    pytester.makepyfile(test_decode=decode_cases.TEST)
    return pytester


@pytest.fixture
def build_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.getbasetemp() / "builds"))


@pytest.fixture
def gemm(pytester):
    """A set with one workload of a GEMM, and no solution yet."""
    import traceset_runs  # which needs flashinfer_bench

    return traceset_runs.gemm(pytester.path / "set")
