import pytest

from pytest_flashinfer_perf import devices
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.routines.attention.decode import decode


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
