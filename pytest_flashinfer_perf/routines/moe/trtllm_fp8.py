"""trtllm_fp8_block_scale_moe and trtllm_fp8_per_tensor_scale_moe: routing and experts in one call, in FP8.

The first has scales for tiles, as DeepSeek has them, the second one for each expert's weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _shared, _stored, _trtllm
from pytest_flashinfer_perf.routines.moe._shared import Precision
from pytest_flashinfer_perf.routines.moe._stored import Blockwise, Fp8
from pytest_flashinfer_perf.routines.moe._trtllm import TrtllmMoe, TrtllmMoeInputs
from pytest_flashinfer_perf.spec import Built, Fault, LaunchOptions, Tolerance, flag
from pytest_flashinfer_perf.spec.dtypes import FP8

API = "fused_moe.trtllm_fp8_block_scale_moe"
InTiles = TrtllmMoeInputs[Blockwise]
InFp8 = TrtllmMoeInputs[Fp8]
PER_TENSOR = "fused_moe.trtllm_fp8_per_tensor_scale_moe"
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


def inputs(p: TrtllmFp8BlockScaleMoe, rand: torch.Generator, _device: torch.device) -> InTiles:
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
def _launcher(p: TrtllmFp8BlockScaleMoe, x: InTiles, _options: LaunchOptions) -> Built[InTiles]:
    from flashinfer.fused_moe import trtllm_fp8_block_scale_moe

    def launch(x: InTiles) -> object:
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
def _mono(p: TrtllmFp8BlockScaleMoe, x: InTiles, _options: LaunchOptions) -> Built[InTiles]:
    """mono_moe takes tokens in 16 bits, which represent these exactly, and the gate's rows first, in its own order."""
    from flashinfer.fused_moe import alloc_scratchpad, interleave_for_tma_wgmma_up, mono_moe

    first, scales = _gate_first(x.stored.first), _gate_first(x.stored.first_scales)
    stored = x.stored._replace(x=x.stored.tokens().bfloat16(), x_scales=None, first_scales=scales)
    stored = stored._replace(first=interleave_for_tma_wgmma_up(first))
    scratchpad, (scoring, renormalize) = alloc_scratchpad(x.out.device), SCORED[p.routing_method]

    def launch(x: InTiles) -> object:
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


@dataclass(frozen=True)
class TrtllmFp8PerTensorScaleMoe(TrtllmMoe):
    use_routing_scales_on_input: bool = flag(
        "llama4: apply routing weights to the inputs of experts", default=False, letter="oninput"
    )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.use_routing_scales_on_input and self.routing_method != "llama4":
            yield "use_routing_scales_on_input", f"is for --routing_method llama4, not {self.routing_method}"

    @property
    def weighs_input(self) -> bool:
        return self.use_routing_scales_on_input


def _tensor_inputs(p: TrtllmFp8PerTensorScaleMoe, rand: torch.Generator, _device: torch.device) -> InFp8:
    logits = torch.bfloat16 if p.routing_method == "llama4" else torch.float32
    return _trtllm.inputs(p, _stored.in_fp8(*_trtllm.drawn(p, rand)), logits, rand)


def _tensor_precision(_p: TrtllmFp8PerTensorScaleMoe) -> Precision:
    return Precision(FP8[0], 1.0, 1.0, Tolerance(2e-2, 8e-2, 1.5e-2))


fp8_tensor = _shared.routine(
    "trtllm_fp8_per_tensor_scale_moe", TrtllmFp8PerTensorScaleMoe, _tensor_inputs, _trtllm.choices, _tensor_precision
)


def _tensor_limits(p: TrtllmFp8PerTensorScaleMoe, backend: str, _device: Device) -> Iterator[str]:
    yield from _trtllm.activation_limits(p, backend, PER_TENSOR)
    yield from _trtllm.only_major_k(p, backend)
    yield from _trtllm.limits(p, backend)


@fp8_tensor.backend("trtllm", api=PER_TENSOR, limits=_tensor_limits, tunes=True)
def _per_tensor(p: TrtllmFp8PerTensorScaleMoe, x: InFp8, _options: LaunchOptions) -> Built[InFp8]:
    from flashinfer.fused_moe import trtllm_fp8_per_tensor_scale_moe

    activation = _trtllm.activation(p)

    def launch(x: InFp8) -> object:
        return trtllm_fp8_per_tensor_scale_moe(
            **_trtllm.arguments(p, x),
            output1_scales_scalar=x.stored.between,
            output1_scales_gate_scalar=x.stored.by_first,
            output2_scales_scalar=x.stored.by_second,
            use_routing_scales_on_input=p.use_routing_scales_on_input,
            activation_type=activation,
        )

    return Built(launch, "trtllm", replace(x, stored=_tensors_as_passed(p, x.stored)))


def _tensors_as_passed(p: TrtllmFp8PerTensorScaleMoe, stored: Fp8) -> Fp8:
    first = _trtllm.first_rows(p, stored.first.view(torch.uint8)).view(stored.first.dtype)
    second = _narrow.shuffled_rows(stored.second.view(torch.uint8)).view(stored.second.dtype)
    return stored._replace(first=first, second=second, between=_trtllm.to_between(p, stored))


_trtllm.declare_shapes(
    fp8_tensor,
    TrtllmFp8PerTensorScaleMoe(**_trtllm.SMOKE),
    smoke=(
        {"activation_type": "Geglu"},
        {"activation_type": "Relu2"},
        {**_trtllm.UNGROUPED, **_trtllm.LLAMA4, "use_routing_scales_on_input": True},
    ),
)
