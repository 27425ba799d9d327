"""cutlass_fused_moe: the experts of a layer, for tokens whose experts have been chosen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow, layers
from pytest_flashinfer_perf.routines._offsets import list_faults, listed
from pytest_flashinfer_perf.routines.moe import _routing, _shared, _stored
from pytest_flashinfer_perf.routines.moe._experts import Choices
from pytest_flashinfer_perf.routines.moe._shared import Precision
from pytest_flashinfer_perf.routines.moe._stored import Blockwise, Fp8, Int4, Nvfp4, Plain
from pytest_flashinfer_perf.spec import Built, Fault, LaunchOptions, Model, ParamError, Shape, Tolerance, autotune, flag
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH

API = "fused_moe.cutlass_fused_moe"
VARIANTS = ("base", "fp8", "nvfp4", "deepseek_fp8_block_scale", "w4a8")
ON_HOPPER = VARIANTS[3:]  # alone, with bfloat16
STEPS = {"nvfp4": 32, "w4a8": 128}  # of sizes that can be stored so
SIZES = "needs a hidden_size, and an intermediate_size on each GPU, in multiples of"


@dataclass(frozen=True)
class CutlassFusedMoe(_shared.Moe):
    cutlass_variant: str = flag("storage format of weights and tokens", default="base", choices=VARIANTS)
    quantized_input: bool = flag("nvfp4: quantise tokens before the call, too", default=False, letter="qin")
    tp_size: int = flag("GPUs that share each expert", default=1, letter="tp", minimum=1, draw=(1, 2))
    tp_rank: int = flag("rank of this GPU among them", default=0, letter="tpr", minimum=0, draw=(0, 1))
    ep_size: int = flag("GPUs that share the experts", default=1, letter="ep", minimum=1, draw=(1, 2))
    ep_rank: int = flag("rank of this GPU among them", default=0, letter="epr", minimum=0, draw=(0, 1))
    autotune: bool = autotune()
    expert_counts: str | None = flag(
        "tokens of each expert, as 12,0,6x3, instead of expert_load", default=None, letter="counts", draw=(None,)
    )

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        """Sizes that types' blocks allow, and GPUs that can share them, with a rank among these."""
        fit, variant = super().fitted(drawn), drawn["cutlass_variant"]
        unit = STEPS.get(variant, 1)
        fit |= {side: -(-fit[side] // unit) * unit for side in ("hidden_size", "intermediate_size")}
        for way, shared in (("tp", fit["intermediate_size"] // unit), ("ep", fit["num_experts"])):
            size = fit[f"{way}_size"] if shared % fit[f"{way}_size"] == 0 else 1
            fit |= {f"{way}_size": size, f"{way}_rank": fit[f"{way}_rank"] % size}
        return {**fit, "quantized_input": variant == "nvfp4" and fit["quantized_input"]}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.quantized_input and self.cutlass_variant != "nvfp4":
            yield "quantized_input", f"is for cutlass_variant nvfp4, not {self.cutlass_variant}"
        for way, what in (("tp", "intermediate_size"), ("ep", "num_experts")):
            size, rank, shared = getattr(self, f"{way}_size"), getattr(self, f"{way}_rank"), getattr(self, what)
            if rank >= size:
                yield f"{way}_rank", f"{rank} is not one of {size} GPUs, which count from 0"
            if shared % size:
                yield f"{way}_size", f"{size} GPUs cannot share {what} {shared} evenly"
        if self.not_in_steps_of(step := STEPS.get(self.cutlass_variant, 1)):
            yield "cutlass_variant", f"{self.cutlass_variant} {SIZES} {step}"
        faults = list(list_faults("expert_counts", self.expert_counts, ("num_experts", self.num_experts)))
        yield from faults
        if self.expert_counts and not faults:
            counts, chosen = listed(self.expert_counts), self.num_tokens * self.top_k
            if sum(counts) != chosen or max(counts) > self.num_tokens:
                yield "expert_counts", f"{self.num_tokens} tokens choose {chosen} experts, each at most once"

    @property
    def here(self) -> range:
        count = self.num_experts // self.ep_size
        return range(self.ep_rank * count, (self.ep_rank + 1) * count)

    @property
    def local_intermediate(self) -> int:
        return self.intermediate_size // self.tp_size

    @property
    def rearranged(self) -> bool:
        return self.cutlass_variant == "w4a8"

    def not_in_steps_of(self, step: int) -> bool:
        return bool(self.hidden_size % step or self.local_intermediate % step)


Stored = Plain | Fp8 | Nvfp4 | Blockwise | Int4


class CutlassMoeInputs(NamedTuple):
    selected: Tensor  # [tokens, top_k], of all experts
    weights: Tensor  # [tokens, top_k]
    stored: Stored
    out: Tensor


def inputs(p: CutlassFusedMoe, rand: torch.Generator, device: torch.device) -> CutlassMoeInputs:
    """Experts are chosen by the largest logits, or as often as they are listed; their softmax weights them."""
    first = min(p.here.start, p.num_experts - p.top_k)
    popular = _routing.popularity(p.expert_load, p.num_experts, range(first, first + p.top_k), rand)
    largest, selected = _routing.logits(popular, p.num_tokens, rand).topk(p.top_k)
    if p.expert_counts:
        selected = _routing.counted(listed(p.expert_counts), p.num_tokens, rand)
    out = torch.empty(p.num_tokens, p.hidden_size, dtype=TORCH[p.input_dtype], device=device)
    return CutlassMoeInputs(selected.int(), largest.softmax(-1), _stored_as(p, rand), out)


def _stored_as(p: CutlassFusedMoe, rand: torch.Generator) -> Stored:
    dtype = TORCH[p.input_dtype]
    x, first, second = _shared.drawn(p, dtype, rand)
    if p.cutlass_variant == "fp8":
        return _stored.in_fp8(x, first, second)
    if p.cutlass_variant == "nvfp4":
        return _stored.in_nvfp4(x, first, second, left=None if p.quantized_input else dtype)
    if p.cutlass_variant == "deepseek_fp8_block_scale":
        return _stored.in_blocks(x, first, second, left=dtype)
    if p.cutlass_variant == "w4a8":
        return _stored.in_int4(x, first, second, dtype)
    return _stored.in_16_bits(x.to(dtype), first, second)


def choices(_p: CutlassFusedMoe, x: CutlassMoeInputs) -> Choices:
    return Choices(x.selected, x.weights)


IN_FP8 = Precision(FP8[0], 1.0, 1.0, Tolerance(2e-2, 8e-2, 1.5e-2), Tolerance(2e-2, 8e-2, 1.5e-2, matched=0.99))


def precision(p: CutlassFusedMoe) -> Precision:
    """Intermediate values are rounded to 16 bits or FP8, and another order of summation may round them differently. A
    single token's output depends on few such values, so that their rounding may resemble a common factor. With
    DeepSeek's scales the kernel rounds tokens and intermediate values by scales that it computes itself.
    """
    return {
        "base": Precision(p.input_dtype, 2.0, 2.0, Tolerance(1e-2, 3e-2, 1e-2)),
        "fp8": IN_FP8,
        "w4a8": replace(IN_FP8, weight_bytes=0.5 + 2 / 128),
        "nvfp4": _shared.IN_NVFP4,
        "deepseek_fp8_block_scale": _shared.IN_BLOCKS,
    }[p.cutlass_variant]


cutlass_moe = _shared.routine("cutlass_fused_moe", CutlassFusedMoe, inputs, choices, precision)


def _limits(p: CutlassFusedMoe, backend: str, device: Device) -> Iterator[str]:
    variant, on = p.cutlass_variant, device.capability
    if variant == "nvfp4" and on is not None and on < (10, 0):
        yield f"{backend} has nvfp4 on compute capability 10.0 or later: use base or fp8"
    if variant in ON_HOPPER and on is not None and on != (9, 0):
        yield f"{backend} has {variant} on compute capability 9.0 alone"
    if variant in ON_HOPPER and p.input_dtype != "bfloat16":
        yield f"{backend} has {variant} with --input_dtype bfloat16"
    if variant in VARIANTS[2:] and p.not_in_steps_of(128):
        yield f"{backend} {SIZES} 128 for {variant}"
    if p.activation_type == "Situ" and not capability.accepts(capability.api(API), "situ_beta"):
        yield f"{backend} has no Situ in this flashinfer"


@cutlass_moe.backend("cutlass", api=API, runs_as="cutlass_fused_moe", limits=_limits, tunes=True)
def _cutlass(p: CutlassFusedMoe, x: CutlassMoeInputs, _options: LaunchOptions) -> Built[CutlassMoeInputs]:
    from flashinfer.fused_moe import cutlass_fused_moe
    from flashinfer.tllm_enums import ActivationType

    shared = {name: getattr(p, name) for name in ("tp_size", "tp_rank", "ep_size", "ep_rank")}
    activation, out_dtype = ActivationType[p.activation_type], TORCH[p.input_dtype]

    def launch(x: CutlassMoeInputs) -> object:
        return cutlass_fused_moe(
            x.stored.x,
            x.selected,
            x.weights,
            x.stored.first,
            x.stored.second,
            out_dtype,
            output=x.out,
            activation_type=activation,
            enable_pdl=p.enable_pdl,
            **_said_of(x.stored),
            **shared,
        )

    return Built(launch, "cutlass", x._replace(stored=_as_passed(x.stored)))


def _said_of(stored: Stored) -> dict[str, Any]:
    """The scales, in the order of their kind, and the flags that tell this kind."""
    if isinstance(stored, Plain):
        return {"quant_scales": None}
    if isinstance(stored, Fp8):
        return {"quant_scales": [stored.by_first, stored.between, stored.by_second, stored.unit]}
    if isinstance(stored, Nvfp4):
        first = [stored.unit, stored.first_blocks, stored.by_first]
        second = [stored.between, stored.second_blocks, stored.by_second]
        return {"quant_scales": [*first, *second], "input_sf": stored.x_blocks}
    scales = [stored.first_scales, stored.second_scales]
    if isinstance(stored, Blockwise):
        return {"quant_scales": scales, "use_deepseek_fp8_block_scale": True}
    no_zeros = stored.unit.new_empty(0)
    scales += [stored.unit, stored.between, no_zeros, no_zeros, stored.by_first, stored.by_second]
    return {"quant_scales": scales, "use_w4_group_scaling": True, "use_packed_weights": True}


def _as_passed(stored: Stored) -> Stored:
    """Pack weights. NVFP4: scales of blocks in tiles of 128 x 4, four to an int32, weights 16 to an int64."""
    if isinstance(stored, Int4):
        from flashinfer import fused_moe as own

        return stored._replace(
            first=own.interleave_moe_weights_for_sm90_mixed_gemm(stored.first.view(torch.uint8), "int4"),
            first_scales=own.interleave_moe_scales_for_sm90_mixed_gemm(stored.first_scales, _narrow.GROUP),
            second=own.interleave_moe_weights_for_sm90_mixed_gemm(stored.second.view(torch.uint8), "int4"),
            second_scales=own.interleave_moe_scales_for_sm90_mixed_gemm(stored.second_scales, _narrow.GROUP),
        )
    if not isinstance(stored, Nvfp4):
        return stored
    return stored._replace(
        x_blocks=None if stored.x_blocks is None else _narrow.swizzled_128x4(stored.x_blocks),
        first=stored.first.view(torch.int64),
        first_blocks=_stored.in_tiles(stored.first_blocks).view(torch.int32),
        second=stored.second.view(torch.int64),
        second_blocks=_stored.in_tiles(stored.second_blocks).view(torch.int32),
    )


SMOKE = CutlassFusedMoe(num_tokens=32, hidden_size=256, intermediate_size=128, num_experts=8, top_k=2)


@cutlass_moe.tier("smoke")
def _smoke() -> Iterator[Shape[CutlassFusedMoe]]:
    changes: tuple[dict[str, Any], ...] = (
        {},
        *({"cutlass_variant": variant} for variant in VARIANTS[1:]),
        {"cutlass_variant": "nvfp4", "quantized_input": True},
        {"input_dtype": "float16"},
        {"activation_type": "Geglu"},
        {"activation_type": "Relu2"},
        {"expert_load": "zipf"},
        {"expert_load": "one"},
        {"num_tokens": 1},
        {"tp_size": 2, "tp_rank": 1, "ep_size": 4, "ep_rank": 3},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)


@cutlass_moe.tier("default")
def _default() -> Iterator[Shape[CutlassFusedMoe]]:
    """Mixtral 8x7B whole; DeepSeek-V3 on one of 32 GPUs."""
    for model in (layers.chosen_experts("mixtral-8x7b"), layers.chosen_experts("deepseek-v3", ep=32)):
        usual = CutlassFusedMoe(num_tokens=256, **model.parameters)
        yield from (Shape(replace(usual, num_tokens=tokens), model) for tokens in (16, 256, 4096))
        for variant in ("fp8", *ON_HOPPER):
            yield from (
                Shape(replace(usual, cutlass_variant=variant, num_tokens=tokens), model) for tokens in (16, 4096)
            )
        yield from (Shape(replace(usual, expert_load=load), model) for load in ("zipf", "one"))
        for variant in ("base", "fp8", "w4a8"):
            yield Shape(replace(usual, cutlass_variant=variant, autotune=True), model, backends=("cutlass",))


@cutlass_moe.sweep(layers.chosen_experts)
def _of_model(model: Model) -> Iterator[Shape[CutlassFusedMoe]]:
    """The shapes of a model; none if its weights on so many GPUs do not fit into blocks."""
    for tokens, variant in itertools.product(layers.TOKENS, VARIANTS):
        with suppress(ParamError):
            yield Shape(CutlassFusedMoe(num_tokens=tokens, cutlass_variant=variant, **model.parameters), model)
