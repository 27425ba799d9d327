"""Ten cases, of which four end badly on a real GPU; all are well where ENDINGS=none.

ENDINGS=none pytest benchmarks/endings.py --import-mode=importlib -n 1 --benchmark-json=well.json
pytest benchmarks/endings.py --import-mode=importlib -n 1 --perf-timeout=20 --benchmark-json=ended.json
python benchmarks/many_evidence.py well.json ended.json
"""

import os

import pytest
import torch

from pytest_flashinfer_perf.machine import devices, nvrtc
from pytest_flashinfer_perf.plugin.fixture import Perf

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SOURCE = r"""
extern "C" __global__ void wild(unsigned long long at) { *(volatile int*)at = 1; }
extern "C" __global__ void endless(volatile unsigned long long* never) { while (*never == 0) {} }
"""


def launched(name: str, argument: int) -> None:
    nvrtc.kernel(SOURCE, name, devices.find("auto"))(1, 1, argument)


def writes_wildly() -> None:
    launched("wild", 8)


def never_ends() -> None:
    launched("endless", torch.zeros(1, dtype=torch.int64, device="cuda").data_ptr())


def asserts() -> torch.Tensor:
    return torch.arange(4, device="cuda")[torch.tensor([99], device="cuda")]


def runs_out() -> torch.Tensor:
    return torch.empty(1 << 45, dtype=torch.uint8, device=DEVICE)


ENDINGS = {2: writes_wildly, 4: never_ends, 6: asserts, 8: runs_out} if os.environ.get("ENDINGS") != "none" else {}


@pytest.mark.parametrize("n", range(10))
def test_case(perf: Perf, n: int) -> None:
    if n in ENDINGS:
        perf.time(ENDINGS[n])
    else:
        size = (2048 if DEVICE == "cuda" else 64) + 256 * n  # a CPU without bfloat16 takes minutes for the larger
        a = torch.randn(size, size, dtype=torch.bfloat16, device=DEVICE)
        perf.time(torch.mm, a, a, out=torch.empty_like(a), flops=2 * size**3, bytes=3 * a.nbytes)
