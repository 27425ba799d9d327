"""trtllm_fp8_block_scale_moe: routing and experts in one call, in FP8 as DeepSeek has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _shared, _stored, _trtllm
from pytest_flashinfer_perf.routines.moe._shared import Precision
from pytest_flashinfer_perf.routines.moe._stored import Blockwise
from pytest_flashinfer_perf.routines.moe._trtllm import TrtllmMoe, TrtllmMoeInputs
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "fused_moe.trtllm_fp8_block_scale_moe"
EPILOGUE = 64  # rows of weights that the kernel shuffles together
BLOCK_K = 128
MONO = {"num_experts": 256, "hidden_size": 2048, "intermediate_size": 512}
SCORED = {"renormalize": ("softmax", True), "renormalize_naive": ("softmax", True), "llama4": ("sigmoid", False)}


@dataclass(frozen=True)
class TrtllmFp8BlockScaleMoe(TrtllmMoe):
    """The flags that all three routines share; weights are passed as they are stored unless they are shuffled, or are
    those that mono_moe can multiply.
    """

    @property
    def rearranged(self) -> bool:
        return self.use_shuffled_weight or all(getattr(self, name) == size for name, size in MONO.items())


def inputs(p: TrtllmFp8BlockScaleMoe, rand: torch.Generator, _device: torch.device) -> TrtllmMoeInputs[Blockwise]:
    logits = torch.float32 if p.routing_method == _trtllm.GROUPED else torch.bfloat16
    return _trtllm.inputs(p, _stored.in_blocks(*_trtllm.drawn(p, rand)), logits, rand)


def precision(_p: TrtllmFp8BlockScaleMoe) -> Precision:
    """Kernels round intermediate values, and mono_moe also tokens, by scales that they compute."""
    return _shared.IN_BLOCKS


fp8_block = _shared.routine("trtllm_fp8_block_scale_moe", TrtllmFp8BlockScaleMoe, inputs, _trtllm.choices, precision)


def _limits(p: TrtllmFp8BlockScaleMoe, backend: str, _device: Device) -> Iterator[str]:
    if p.activation_type != "Swiglu":
        yield f"{backend} has Swiglu alone in FP8 with DeepSeek's scales"
    if p.weight_layout == 1:
        yield f"{backend} takes weights in MajorK or BlockMajorK: --weight_layout 0 or 2"
    if p.weight_layout == 2 and not p.use_shuffled_weight:
        yield f"{backend} takes weights in BlockMajorK shuffled: add --use_shuffled_weight"
    yield from _trtllm.limits(p, backend)


@fp8_block.backend("trtllm", api=API, limits=_limits, tunes=True)
def _launcher(
    p: TrtllmFp8BlockScaleMoe, x: TrtllmMoeInputs[Blockwise], _options: LaunchOptions
) -> Built[TrtllmMoeInputs[Blockwise]]:
    from flashinfer.fused_moe import trtllm_fp8_block_scale_moe

    def launch(x: TrtllmMoeInputs[Blockwise]) -> object:
        return trtllm_fp8_block_scale_moe(
            **_trtllm.arguments(p, x),
            hidden_states_scale=x.stored.x_scales,
            gemm1_weights_scale=x.stored.first_scales,
            gemm2_weights_scale=x.stored.second_scales,
            use_shuffled_weight=p.use_shuffled_weight,
            weight_layout=p.weight_layout,
        )

    return Built(launch, "trtllm", replace(x, stored=_as_passed(p, x.stored)))


def _as_passed(p: TrtllmFp8BlockScaleMoe, stored: Blockwise) -> Blockwise:
    first, second = (_arranged(p, weights.view(torch.uint8)).view(weights.dtype) for weights in stored.weights)
    x_scales = None if stored.x_scales is None else _narrow.mn_major(stored.x_scales)
    return stored._replace(x_scales=x_scales, first=first, second=second)


def _arranged(p: TrtllmFp8BlockScaleMoe, weights: Tensor) -> Tensor:
    if p.use_shuffled_weight:
        weights = _narrow.shuffled_rows(weights, EPILOGUE)
    return _narrow.block_major(weights, BLOCK_K) if p.weight_layout == 2 else weights


def _mono_limits(p: TrtllmFp8BlockScaleMoe, backend: str, _device: Device) -> Iterator[str]:
    if any(getattr(p, name) != size for name, size in MONO.items()) or len(p.here) < p.num_experts:
        yield f"{backend} is made for {', '.join(f'{name} {size}' for name, size in MONO.items())} on one GPU"
    if p.num_tokens > 8 or p.top_k > 8:
        yield f"{backend} takes up to 8 tokens, and a --top_k of up to 8"
    if p.routing_method not in SCORED:
        yield f"{backend} routes as {', '.join(SCORED)}, not {p.routing_method}"
    if p.activation_type != "Swiglu":
        yield f"{backend} has Swiglu alone"
    if p.enable_pdl:
        yield f"{backend} is one kernel: leave out --enable_pdl"


@fp8_block.backend("mono_moe", api="fused_moe.mono_moe", limits=_mono_limits)
def _mono(
    p: TrtllmFp8BlockScaleMoe, x: TrtllmMoeInputs[Blockwise], _options: LaunchOptions
) -> Built[TrtllmMoeInputs[Blockwise]]:
    """mono_moe takes tokens in 16 bits, which represent these exactly, and the gate's rows first, in its own order."""
    from flashinfer.fused_moe import alloc_scratchpad, interleave_for_tma_wgmma_up, mono_moe

    first, scales = _gate_first(x.stored.first), _gate_first(x.stored.first_scales)
    stored = x.stored._replace(x=x.stored.tokens().bfloat16(), x_scales=None, first_scales=scales)
    stored = stored._replace(first=interleave_for_tma_wgmma_up(first))
    scratchpad, (scoring, renormalize) = alloc_scratchpad(x.out.device), SCORED[p.routing_method]

    def launch(x: TrtllmMoeInputs[Blockwise]) -> object:
        return mono_moe(
            x.stored.x,
            x.logits,
            x.stored.first,
            x.stored.first_scales,
            x.stored.second,
            x.stored.second_scales,
            top_k=p.top_k,
            scoring_func=scoring,
            renormalize=renormalize,
            out=x.out,
            scratchpad=scratchpad,
            interleave_up=False,
        )

    return Built(launch, "mono_moe", replace(x, stored=stored))


def _gate_first(rows: Tensor) -> Tensor:
    return rows.view(torch.uint8).roll(rows.shape[1] // 2, 1).view(rows.dtype)


SHUFFLED = {"use_shuffled_weight": True}
_trtllm.declare_shapes(
    fp8_block,
    TrtllmFp8BlockScaleMoe(**_trtllm.SMOKE),
    smoke=(SHUFFLED, {**SHUFFLED, "weight_layout": 2}),
    each=(SHUFFLED,),
)
