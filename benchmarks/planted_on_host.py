"""For the evidence that host time is judged: `-p planted_on_host` puts what HOST_FAULT names into FlashInfer's calls.

HOST_FAULT=busy spins for 10 us, HOST_FAULT=item reads a number back from the GPU, HOST_FAULT=empty allocates 1 MiB
there. A CUDA graph holds no `item`: it goes with --perf-cuda-graph=off.
"""

import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

SPIN_S = 10e-6


def busy() -> None:
    end = time.perf_counter() + SPIN_S
    while time.perf_counter() < end:
        pass


@functools.cache
def on_gpu() -> torch.Tensor:
    return torch.ones(1, device="cuda")


def item() -> object:
    return on_gpu().item()


def empty() -> object:
    return torch.empty(1 << 20, dtype=torch.uint8, device="cuda")


def behind(function: Callable[..., Any], fault: Callable[[], object]) -> Callable[..., Any]:
    """The library's function, its signature and its decorators' marks kept."""

    @functools.wraps(function)
    def slowed(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        fault()
        return answer

    return slowed


def calls() -> Iterator[tuple[Any, str]]:
    """Where the suite's backends find what they launch."""
    import flashinfer.decode
    import flashinfer.gemm
    import flashinfer.mla
    import flashinfer.prefill

    yield flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper, "run"
    yield flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper, "run"
    yield flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper, "run"
    yield flashinfer.mla.BatchMLAPagedAttentionWrapper, "run"
    yield flashinfer.decode, "cudnn_batch_decode_with_kv_cache"
    yield flashinfer.gemm, "bmm_fp8"
    yield flashinfer.gemm, "mm_bf16"


def pytest_configure() -> None:
    fault = {"busy": busy, "item": item, "empty": empty}[os.environ["HOST_FAULT"]]
    for holder, name in calls():
        setattr(holder, name, behind(getattr(holder, name), fault))
