"""Matrix products of a step, by the routine for the type in which the checkpoint stores the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_flashinfer_perf.models.kernel import Call, Kernel

OF_TYPE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "bf16": {"mm_bf16": {}},
    "fp8": {"mm_fp8": {}, "bmm_fp8": {"batch_size": 1}},
    "fp8_blocks": {"gemm_fp8_nt_groupwise": {}},
    "nvfp4": {"mm_fp4": {"use_nvfp4": True, "use_128x4_sf_layout": True}},
    "mxfp4": {"mm_fp4": {"use_128x4_sf_layout": True}},
}


class Weights(NamedTuple):
    """A matrix [n, k] as the checkpoint stores it; only mm_bf16 adds a bias to each row."""

    n: int
    k: int
    stored: str = "bf16"
    bias: bool = False


def product(name: str, m: int, weights: Weights) -> Kernel:
    n, k, stored, bias = weights
    added = {"bias": True} if bias and stored == "bf16" else {}
    note = "without its bias" if bias and not added else ""
    calls = tuple(Call(routine, {"m": m, "n": n, "k": k, **more, **added}) for routine, more in OF_TYPE[stored].items())
    return replace(Kernel.called(name, calls, n * k + n * bias, 2.0 * m * n * k, stored), note=note)


def of_heads(name: str, heads: int, m: int, weights: Weights) -> Kernel:
    """A product for each head, of weights that are bf16 when they are multiplied."""
    n, k, stored, _ = weights
    call = Call("bmm_bf16", {"batch_size": heads, "m": m, "n": n, "k": k})
    return Kernel.called(name, (call,), heads * n * k, 2.0 * heads * m * n * k, stored)
