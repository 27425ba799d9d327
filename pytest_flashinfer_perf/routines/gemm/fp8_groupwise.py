"""gemm_fp8_nt_groupwise: FP8 with a scale for each 1x128 of the activations and each 128x128 of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.gemm import _grouped, _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._grouped import GroupwiseParams
from pytest_flashinfer_perf.routines.gemm._shared import Operands
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "gemm.gemm_fp8_nt_groupwise"
SM90 = "fp8_blockscale_gemm_sm90"


@dataclass(frozen=True)
class Fp8Groupwise(GroupwiseParams):
    """One product."""


class Fp8GroupwiseInputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k]
    a_scale: Tensor  # [m, k / 128], or [k / 128, m]
    b_scale: Tensor  # [n / 128, k / 128], or [k / 128, n / 128]
    out: Tensor


def inputs(p: Fp8Groupwise, rand: torch.Generator, device: torch.device) -> Fp8GroupwiseInputs:
    a, a_scale = _grouped.activations(p, p.m, rand)
    b, b_scale = _grouped.weights(p, rand)
    return Fp8GroupwiseInputs(a, b, a_scale, b_scale, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


def _operands(p: Fp8Groupwise, x: Fp8GroupwiseInputs) -> Operands:
    return Operands(
        _grouped.meant_activations(p, x.a, x.a_scale),
        _grouped.meant_weights(p, x.b, x.b_scale),
    )


fp8_groupwise = _shared.routine("gemm_fp8_nt_groupwise", Fp8Groupwise, inputs, _operands, FP8[0])


def _limits(p: Fp8Groupwise, backend: str, _device: Device) -> Iterator[str]:
    if backend == "cutlass" and p.m % 4:
        yield f"cutlass needs an m in steps of 4, not {p.m}: pad it"
    yield from _grouped.limits(p, backend)
    if backend == "trtllm" and p.scale_major_mode != "MN":
        yield "trtllm takes MN-major scales only: set scale_major_mode to MN"
    if backend == "trtllm" and p.k < 256:
        yield f"trtllm needs a k of at least 256, not {p.k}: use cutlass"
    if backend == "trtllm" and p.out_dtype != "bfloat16":
        yield "trtllm writes bfloat16 only: use cutlass"


@fp8_groupwise.backend("cutlass", "trtllm", "cutile", api=API, limits=_limits)
def _gemm(p: Fp8Groupwise, _x: Fp8GroupwiseInputs, options: LaunchOptions) -> Built[Fp8GroupwiseInputs]:
    from flashinfer.gemm import gemm_fp8_nt_groupwise

    def launch(x: Fp8GroupwiseInputs) -> object:
        return gemm_fp8_nt_groupwise(
            x.a,
            x.b,
            x.a_scale,
            x.b_scale,
            scale_major_mode=p.scale_major_mode,
            mma_sm=p.mma_sm,
            out=x.out,
            backend=options.backend,
        )

    return Built(launch, options.backend)


def _sm90_limits(p: Fp8Groupwise, backend: str, _device: Device) -> Iterator[str]:
    if p.n % 64:
        yield f"{backend} needs an n in steps of 64, not {p.n}"
    if (p.input_dtype, p.mat2_dtype) != (FP8[0], FP8[0]):
        yield f"{backend} multiplies {FP8[0]} only"
    if p.out_dtype != "bfloat16":
        yield f"{backend} writes bfloat16, whatever type its output has"
    if p.mma_sm != 1:
        yield f"{backend} has no mma_sm to choose: leave it 1"


@fp8_groupwise.backend(SM90, api=f"gemm.{SM90}", limits=_sm90_limits)
def _sm90(p: Fp8Groupwise, x: Fp8GroupwiseInputs, _options: LaunchOptions) -> Built[Fp8GroupwiseInputs]:
    """Hopper's kernel: the activations' scales lie by columns, padded to 16 bytes, the weights' by rows."""
    from flashinfer.gemm import fp8_blockscale_gemm_sm90

    a_scale = _grouped.linear(p, x.a_scale)
    columns = torch.nn.functional.pad(a_scale.mT, (0, -p.m % 4)).contiguous()
    takes = x._replace(a_scale=columns, b_scale=_grouped.linear(p, x.b_scale).contiguous())

    def launch(x: Fp8GroupwiseInputs) -> object:
        return fp8_blockscale_gemm_sm90(x.a, x.b, x.a_scale.mT[: p.m], x.b_scale, out=x.out)

    return Built(launch, SM90, takes)


_tiers.smoke(
    fp8_groupwise,
    Fp8Groupwise(m=16, n=256, k=512),
    {"scale_major_mode": "K"},
    {"out_dtype": "float16"},
    {"n": 200},
    {"m": 1, "k": 128},
    {"m": 130},
    {"mma_sm": 2},
)
_tiers.of_models(fp8_groupwise, {}, {"scale_major_mode": "K"})
