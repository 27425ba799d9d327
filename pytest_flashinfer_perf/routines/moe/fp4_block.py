"""trtllm_fp4_block_scale_moe: routing and experts in one call, weights in FP4."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _shared, _stored, _trtllm
from pytest_flashinfer_perf.routines.moe._shared import Precision
from pytest_flashinfer_perf.routines.moe._stored import Mxfp4, Nvfp4
from pytest_flashinfer_perf.routines.moe._trtllm import TrtllmMoe, TrtllmMoeInputs
from pytest_flashinfer_perf.spec import Built, Fault, LaunchOptions, Tolerance, flag
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH

API = "fused_moe.trtllm_fp4_block_scale_moe"
MODES = ("nvfp4", "mxfp4_mxfp8", "mxfp4_bf16")
SIDES = ("hidden_size", "intermediate_size")
In = TrtllmMoeInputs["Nvfp4 | Mxfp4"]


@dataclass(frozen=True)
class TrtllmFp4BlockScaleMoe(TrtllmMoe):
    fp4_mode: str = flag("types of weights and tokens", default=MODES[0], usual="", choices=MODES)

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), **{side: -(-drawn[side] // 32) * 32 for side in SIDES}}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if any(getattr(self, side) % 32 for side in SIDES):
            yield "fp4_mode", "FP4 needs a hidden_size and an intermediate_size in multiples of 32"


def inputs(p: TrtllmFp4BlockScaleMoe, rand: torch.Generator, _device: torch.device) -> In:
    logits = torch.float32 if p.routing_method == _trtllm.GROUPED else torch.bfloat16
    drawn, left = _trtllm.drawn(p, rand), TORCH[p.input_dtype] if p.fp4_mode == "mxfp4_bf16" else None
    nvfp4 = p.fp4_mode == "nvfp4"
    stored: Nvfp4 | Mxfp4 = _stored.in_nvfp4(*drawn) if nvfp4 else _stored.in_mxfp4(*drawn, left=left)
    return _trtllm.inputs(p, stored, logits, rand)


def precision(p: TrtllmFp4BlockScaleMoe) -> Precision:
    """With MXFP4 the kernel rounds intermediate values to 16 bits, or to MXFP8 by scales that it computes."""
    return {
        "nvfp4": _shared.IN_NVFP4,
        "mxfp4_mxfp8": Precision(FP8[0], 0.53125, 1 + 1 / 32, _shared.SUMMED, _shared.ROUNDED_ON_THE_WAY),
        "mxfp4_bf16": Precision(p.input_dtype, 0.53125, 2.0, Tolerance(1e-2, 3e-2, 1e-2)),
    }[p.fp4_mode]


fp4_block = _shared.routine("trtllm_fp4_block_scale_moe", TrtllmFp4BlockScaleMoe, inputs, _trtllm.choices, precision)


def _limits(p: TrtllmFp4BlockScaleMoe, backend: str, _device: Device) -> Iterator[str]:
    yield from _trtllm.activation_limits(p, backend, API, stepped=p.fp4_mode == "nvfp4")
    if p.fp4_mode == "mxfp4_bf16" and p.input_dtype != "bfloat16":
        yield f"{backend} has mxfp4_bf16 with --input_dtype bfloat16"
    yield from _trtllm.only_major_k(p, backend)
    yield from _trtllm.limits(p, backend)


@fp4_block.backend("trtllm", api=API, limits=_limits, tunes=True)
def _launcher(p: TrtllmFp4BlockScaleMoe, x: In, _options: LaunchOptions) -> Built[In]:
    from flashinfer.fused_moe import trtllm_fp4_block_scale_moe

    activation, linear = _trtllm.activation(p), _linear_scales_of_tokens()

    def launch(x: In) -> object:
        return trtllm_fp4_block_scale_moe(
            **_trtllm.arguments(p, x),
            hidden_states_scale=x.stored.x_blocks,
            gemm1_weights_scale=x.stored.first_blocks,
            gemm1_bias=None,
            gemm1_alpha=None,
            gemm1_beta=None,
            gemm1_clamp_limit=None,
            gemm2_weights_scale=x.stored.second_blocks,
            gemm2_bias=None,
            activation_type=activation,
            **_scalars(x.stored),
            **linear,
        )

    return Built(launch, "trtllm", replace(x, stored=_as_passed(p, x.stored)))


def _linear_scales_of_tokens() -> dict[str, Any]:
    """The keyword for the activation, if this FlashInfer has it."""
    if not capability.accepts(capability.api(API), "hidden_states_scale_layout"):
        return {}
    from flashinfer.tllm_enums import SfLayout

    return {"hidden_states_scale_layout": SfLayout.layout_linear}


def _scalars(stored: Nvfp4 | Mxfp4) -> dict[str, Tensor | None]:
    """The factors of the intermediate values, of the gate, and of the answer."""
    names = ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar")
    if isinstance(stored, Mxfp4):
        return dict.fromkeys(names)
    return dict(zip(names, (stored.between, stored.by_first, stored.by_second), strict=True))


def _as_passed(p: TrtllmFp4BlockScaleMoe, stored: Nvfp4 | Mxfp4) -> Nvfp4 | Mxfp4:
    """Rows in the order of the epilogue; scales in the same order, in tiles of 128 x 4, viewed as FP8."""
    if isinstance(stored, Nvfp4):
        stored = stored._replace(between=_trtllm.to_between(p, stored))
    first_blocks = _trtllm.first_rows(p, stored.first_blocks.view(torch.uint8))
    second_blocks = _narrow.shuffled_rows(stored.second_blocks.view(torch.uint8))
    return stored._replace(
        x_blocks=None if stored.x_blocks is None else stored.x_blocks.view(torch.float8_e4m3fn),
        first=_trtllm.first_rows(p, stored.first),
        first_blocks=_stored.in_tiles(first_blocks).view(torch.float8_e4m3fn),
        second=_narrow.shuffled_rows(stored.second),
        second_blocks=_stored.in_tiles(second_blocks).view(torch.float8_e4m3fn),
    )


_trtllm.declare_shapes(
    fp4_block,
    TrtllmFp4BlockScaleMoe(**_trtllm.SMOKE),
    smoke=(
        *({"fp4_mode": mode} for mode in MODES[1:]),
        *({"activation_type": name} for name in ("Geglu", "Relu2", "Identity", "SwigluStep")),
    ),
    each=({}, {"fp4_mode": "mxfp4_mxfp8"}),
)
