"""Ten kernels of one's own, 1.4 us to 0.3 ms on an H200: pytest benchmarks/noise_kernels.py

They stand for what users time with `perf.time`: elementwise work in fp32 and bf16, reductions, products of any size.
LONGER=1.03 in the environment makes each problem that much larger, and its id and declared work stay as they are.
"""

import os
from collections.abc import Callable

import pytest
import torch

from pytest_flashinfer_perf.plugin.fixture import Perf

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONGER = float(os.environ.get("LONGER", "1"))


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The first dimension is the one that grows, in steps that no kernel's tiles hide."""
    longer = (round(shape[0] * LONGER), *shape[1:])
    return torch.randn(longer, dtype=torch.float32, device=DEVICE).to(dtype)


def elementwise(perf: Perf, function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> None:
    out = torch.empty_like(tensors[0])
    count = sum(t.nbytes for t in (*tensors, out))
    perf.time(
        function, *tensors, out=out, bytes=count / LONGER, reference=lambda: function(*(t.double() for t in tensors))
    )


@pytest.mark.parametrize("count", [1 << 16, 1 << 20, 1 << 24])
def test_add_fp32(perf: Perf, count: int) -> None:
    elementwise(perf, torch.add, made(count, dtype=torch.float32), made(count, dtype=torch.float32))


@pytest.mark.parametrize("count", [1 << 16, 1 << 24])
def test_exp_bf16(perf: Perf, count: int) -> None:
    elementwise(perf, torch.exp, made(count))


@pytest.mark.parametrize("rows", [256, 8192])
def test_softmax_fp32(perf: Perf, rows: int) -> None:
    x = made(rows, 4096, dtype=torch.float32)
    out = torch.empty_like(x)
    count = 2 * x.nbytes / LONGER
    perf.time(torch.softmax, x, -1, out=out, bytes=count, reference=lambda: torch.softmax(x.double(), -1))


@pytest.mark.parametrize("n", [256, 1024, 4096])
def test_matmul_bf16(perf: Perf, n: int) -> None:
    a, b = made(n, n), torch.randn(n, n, device=DEVICE).to(torch.bfloat16)
    out = torch.empty(a.shape[0], n, dtype=torch.bfloat16, device=DEVICE)
    perf.time(torch.mm, a, b, out=out, flops=2 * n**3, bytes=3 * b.nbytes, reference=lambda: a.float() @ b.float())
