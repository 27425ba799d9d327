"""Calls of two to ten kernels, 20 us and more on an H200, with and without gaps: pytest benchmarks/noise_sequences.py

They stand for what users time with `perf.time`: functions in torch as they are, compiled, and captured in a CUDA
graph; and sequences of FlashInfer's APIs. None says what work it does. LONGER=1.04 in the environment makes each
problem that much larger in its first dimension, and its id stays as it is.
"""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as torch's users write it

from pytest_flashinfer_perf.plugin.fixture import Perf

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONGER = float(os.environ.get("LONGER", "1"))
SMALL = 1 if DEVICE == "cuda" else 32  # what a CPU's rows are divided by


def made(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, dtype=torch.float32, device=DEVICE).to(dtype)


def grown(rows: int, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return made(round(max(1, rows // SMALL) * LONGER), *shape, dtype=dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def scaled_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 0.125, -1)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, weight.shape, weight, bias)


def swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.gelu(x @ up) @ down


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2), -1) @ v


def ten_small(x: Tensor) -> Tensor:
    for _ in range(10):
        x = x * 1.01
    return x


def top_k(x: Tensor) -> Tensor:
    return torch.topk(x, 64).values


def norm_and_gate(x: Tensor, weight: Tensor, up: Tensor) -> Tensor:
    import flashinfer

    gated: Tensor = flashinfer.activation.silu_and_mul(flashinfer.norm.rmsnorm(x, weight) @ up)
    return gated


def renormalised(logits: Tensor) -> Tensor:
    import flashinfer

    probs = flashinfer.sampling.softmax(logits, 0.8)
    kept: Tensor = flashinfer.sampling.top_p_renorm_probs(flashinfer.sampling.top_k_renorm_probs(probs, 50), 0.9)
    return kept


ARGUMENTS: dict[Callable[..., Tensor], Callable[[], tuple[Tensor, ...]]] = {
    rms_norm: lambda: (grown(2048, 4096), made(4096, dtype=torch.float32)),
    scaled_softmax: lambda: (grown(2048, 4096, dtype=torch.float32),),
    add_layer_norm: lambda: (*(grown(2048, 8192) for _ in range(2)), made(8192), made(8192)),
    swiglu: lambda: (grown(4096, 8192),),
    mlp: lambda: (grown(1024, 2048), made(2048, 8192), made(8192, 2048)),
    attention: lambda: tuple(grown(64, 512, 128) for _ in range(3)),
    ten_small: lambda: (grown(1024, 1024, dtype=torch.float32),),
    top_k: lambda: (grown(128, 32768, dtype=torch.float32),),
    norm_and_gate: lambda: (grown(1024, 2048), made(2048), made(2048, 8192)),
    renormalised: lambda: (grown(64, 128256, dtype=torch.float32),),
}
FLASHINFER = (norm_and_gate, renormalised)
WAYS = {
    "eager": tuple(ARGUMENTS),
    "captured": (rms_norm, attention, ten_small, norm_and_gate, renormalised),
    "compiled": (mlp, attention),
}


@pytest.mark.parametrize(("how", "function"), [(how, one) for how, functions in WAYS.items() for one in functions])
def test_sequence(perf: Perf, how: str, function: Callable[..., Tensor]) -> None:
    if function in FLASHINFER and DEVICE == "cpu":
        pytest.skip("FlashInfer's kernels need a GPU")
    arguments = ARGUMENTS[function]()
    if how == "compiled":
        pytest.importorskip("triton")
        function = torch.compile(function)
    graph = "on" if how == "captured" and DEVICE == "cuda" else "off"
    perf.time(function, *arguments, measuring={"cuda_graph": graph})
