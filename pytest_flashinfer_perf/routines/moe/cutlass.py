"""cutlass_fused_moe: the experts of a layer, for tokens whose experts have been chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.check import Tolerance
from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.dtypes import FP8, HALF, TORCH
from pytest_flashinfer_perf.params import Fault, Params, flag
from pytest_flashinfer_perf.routine import Built, How, Routine, Shape
from pytest_flashinfer_perf.routines import _tuning
from pytest_flashinfer_perf.routines.moe import _experts, _load, _stored
from pytest_flashinfer_perf.routines.moe._stored import Stored
from pytest_flashinfer_perf.timing.cold import tensors

API = "fused_moe.cutlass_fused_moe"
BETWEEN_BYTES = {"base": 2, "fp8": 1, "nvfp4": 0.5625}  # of a value between the products, its share of a scale included


@dataclass(frozen=True)
class CutlassFusedMoe(Params):
    num_tokens: int = flag("tokens", letter="t", minimum=1, draw=(1, 7, 33))
    hidden_size: int = flag("width of a token", letter="h", minimum=16, draw=(32, 64))
    intermediate_size: int = flag("width between an expert's products", letter="i", minimum=16, draw=(32, 48))
    num_experts: int = flag("experts of the layer", letter="e", minimum=1, draw=(4, 8))
    top_k: int = flag("experts that a token chooses", letter="k", minimum=1, draw=(1, 2, 4))
    cutlass_variant: str = flag("how weights and tokens are stored", default="base", choices=("base", "fp8", "nvfp4"))
    quantized_input: bool = flag("nvfp4: tokens too, before the call", default=False, letter="qin")
    input_dtype: str = flag("type of tokens and output, before they are quantised", default="bfloat16", choices=HALF)
    activation_type: str = flag("between the products", default="Swiglu", choices=_experts.ACTIVATIONS)
    expert_load: str = flag("how tokens choose: evenly, by zipf, all the same", default="uniform", choices=_load.LOADS)
    tp_size: int = flag("GPUs that share each expert", default=1, letter="tp", minimum=1, draw=(1, 2))
    tp_rank: int = flag("this one's place among them", default=0, letter="tpr", minimum=0, draw=(0, 1))
    ep_size: int = flag("GPUs that share the experts", default=1, letter="ep", minimum=1, draw=(1, 2))
    ep_rank: int = flag("this one's place among them", default=0, letter="epr", minimum=0, draw=(0, 1))
    autotune: bool = _tuning.autotune()

    def faults(self) -> Iterator[Fault]:
        if self.top_k > self.num_experts:
            yield "top_k", f"{self.top_k} is more than the {self.num_experts} experts there are"
        if self.quantized_input and self.cutlass_variant != "nvfp4":
            yield "quantized_input", f"is for cutlass_variant nvfp4, not {self.cutlass_variant}"
        for way, what in (("tp", "intermediate_size"), ("ep", "num_experts")):
            size, rank, shared = getattr(self, f"{way}_size"), getattr(self, f"{way}_rank"), getattr(self, what)
            if rank >= size:
                yield f"{way}_rank", f"{rank} is not one of {size} GPUs, which count from 0"
            if shared % size:
                yield f"{way}_size", f"{size} GPUs cannot share {what} {shared} evenly"
        if self.cutlass_variant == "nvfp4" and (self.hidden_size % 32 or self.local_intermediate % 32):
            yield "cutlass_variant", "nvfp4 needs a hidden_size, and an intermediate_size on each GPU, in steps of 32"

    @property
    def local_experts(self) -> int:
        return self.num_experts // self.ep_size

    @property
    def local_intermediate(self) -> int:
        return self.intermediate_size // self.tp_size


class Inputs(NamedTuple):
    selected: Tensor  # [tokens, top_k], of all experts
    weights: Tensor  # [tokens, top_k]
    stored: Stored  # tokens, and the experts' weights: up, then gate
    out: Tensor


def inputs(p: CutlassFusedMoe, rand: torch.Generator, device: torch.device) -> Inputs:
    scores = _load.logits(p.expert_load, p.num_tokens, p.num_experts, p.top_k, rand)
    selected, weights = _load.renormalised(scores, p.top_k)
    x = _with_outliers(torch.randn(p.num_tokens, p.hidden_size, device=device, generator=rand), rand)
    first = _weights(p, rand, _experts.columns(p.activation_type, p.local_intermediate), p.hidden_size)
    second = _weights(p, rand, p.hidden_size, p.local_intermediate)
    out = torch.empty(p.num_tokens, p.hidden_size, dtype=TORCH[p.input_dtype], device=device)
    return Inputs(selected, weights, _stored_as(p, x, first, second), out)


def _stored_as(p: CutlassFusedMoe, x: Tensor, first: Tensor, second: Tensor) -> Stored:
    if p.cutlass_variant == "fp8":
        return _stored.in_fp8(x, first, second)
    if p.cutlass_variant == "nvfp4":
        dtype = TORCH[p.input_dtype]
        return _stored.in_nvfp4(x, first, second, quantised_input=p.quantized_input, dtype=dtype)
    return Stored(x.to(first.dtype), None, first, second, ())


def _with_outliers(x: Tensor, rand: torch.Generator) -> Tensor:
    """As activations have them: one value in a thousand is ten times as large."""
    return torch.where(torch.rand(x.shape, device=x.device, generator=rand) < 1e-3, 10 * x, x)


def _weights(p: CutlassFusedMoe, rand: torch.Generator, rows: int, columns: int) -> Tensor:
    """One expert after another, since all in fp32 would be too much; each of a size of its own."""
    out = torch.empty(p.local_experts, rows, columns, dtype=TORCH[p.input_dtype], device=rand.device)
    for expert in out:
        size = 2.0 ** int(torch.randint(-1, 2, (), device=rand.device, generator=rand))
        expert.copy_(torch.randn(rows, columns, device=rand.device, generator=rand) * size / math.sqrt(columns))
    return out


def _chosen(p: CutlassFusedMoe, x: Inputs) -> list[_experts.Chosen]:
    return list(_experts.chosen(x.selected, p.ep_rank * p.local_experts, p.local_experts))


def reference(p: CutlassFusedMoe, x: Inputs) -> tuple[Tensor]:
    """Of the experts, and the part of each, that are here."""
    return (_combined(p, x, _chosen(p, x), torch.float32),)


def _combined(p: CutlassFusedMoe, x: Inputs, here: list[_experts.Chosen], dtype: torch.dtype) -> Tensor:
    """With products in this type. What is between them is rounded as the variant rounds it."""
    meant = _stored.meant(x.stored)

    def expert(number: int, rows: Tensor) -> Tensor:
        products = meant.tokens[rows].to(dtype) @ meant.first(number).to(dtype).T
        products = products if meant.by_first is None else products * meant.by_first[number]
        between = meant.rounded(_experts.activated(products, p.activation_type))
        answer = between.to(dtype) @ meant.second(number).to(dtype).T
        return answer if meant.by_second is None else answer * meant.by_second[number]

    return _experts.combined(here, x.weights, p.hidden_size, expert)


def cost(p: CutlassFusedMoe, x: Inputs) -> Cost:
    """Products of the choices that fall on experts here; these experts' weights, tokens, choices and output once."""
    seen = facts(p, x)
    used = seen["active_experts"] / p.local_experts
    weights = sum(t.nbytes for t in (x.stored.first, x.stored.second, *x.stored.scales) if t.dim() == 3)
    around = sum(t.nbytes for t in tensors(x)) - weights
    columns = _experts.columns(p.activation_type, p.local_intermediate)
    per_choice = 2 * (columns + p.local_intermediate) * p.hidden_size
    dtype = {"base": p.input_dtype, "fp8": FP8[0], "nvfp4": "fp4"}[p.cutlass_variant]
    return Cost(seen["expert_tokens"] * per_choice, round(used * weights) + around, dtype)


def facts(p: CutlassFusedMoe, x: Inputs) -> Mapping[str, Any]:
    """What the load came to, and the bytes between the products, which a fused kernel need not write."""
    loads = [len(rows) for _, rows, _ in _chosen(p, x)]
    return {
        "active_experts": len(loads),
        "expert_tokens": sum(loads),
        "largest_load": max(loads, default=0),
        "intermediate_bytes": 2 * sum(loads) * p.local_intermediate * BETWEEN_BYTES[p.cutlass_variant],
    }


def _tolerances(p: CutlassFusedMoe, _backend: str) -> tuple[Tolerance]:
    """What is between the products is rounded to 16 bits, or to FP8, where another order of sums may tip it over. A
    single token's output hangs on a few such values, so that their rounding may look like a common factor.
    """
    of_variant = {
        "base": Tolerance(1e-2, 3e-2, 1e-2),
        "fp8": Tolerance(2e-2, 8e-2, 1.5e-2),
        "nvfp4": Tolerance(5e-2, 2e-1, 1.5e-2),
    }
    return (of_variant[p.cutlass_variant],)


def footprint(p: CutlassFusedMoe) -> int:
    """Weights as drawn and in FP8, an expert in fp32; each choice's row between the products in fp32; the output."""
    columns = _experts.columns(p.activation_type, p.local_intermediate)
    expert = (columns + p.local_intermediate) * p.hidden_size
    between = p.num_tokens * p.top_k * (3 * columns + 2 * p.hidden_size) * 4
    return (p.local_experts * 4 + 12) * expert + between + p.num_tokens * (p.num_experts * 24 + p.hidden_size * 48)


cutlass_moe = Routine(
    "cutlass_fused_moe",
    family="moe",
    params=CutlassFusedMoe,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=cost,
    tolerances=_tolerances,
    footprint=footprint,
    cuda_graph=True,
    facts=facts,
)


def _limits(p: CutlassFusedMoe, backend: str, device: Device) -> Iterator[str]:
    if p.cutlass_variant == "nvfp4" and device.capability is not None and device.capability < (10, 0):
        yield f"{backend} has nvfp4 on compute capability 10.0 or later: use base or fp8"
    if p.cutlass_variant == "nvfp4" and (p.hidden_size % 128 or p.local_intermediate % 128):
        yield f"{backend} needs a hidden_size, and an intermediate_size on each GPU, in steps of 128 for nvfp4"


@cutlass_moe.backend("cutlass", api=API, runs_as="cutlass_fused_moe", limits=_limits, tunes=True)
def _cutlass(p: CutlassFusedMoe, x: Inputs, _how: How) -> Built[Inputs]:
    from flashinfer.fused_moe import cutlass_fused_moe
    from flashinfer.tllm_enums import ActivationType

    shared = {name: getattr(p, name) for name in ("tp_size", "tp_rank", "ep_size", "ep_rank")}
    activation, out_dtype = ActivationType[p.activation_type], TORCH[p.input_dtype]

    def launch(x: Inputs) -> object:
        return cutlass_fused_moe(
            x.stored.x,
            x.selected,
            x.weights,
            x.stored.first,
            x.stored.second,
            out_dtype,
            list(x.stored.scales) or None,
            input_sf=x.stored.x_blocks,
            output=x.out,
            activation_type=activation,
            **shared,
        )

    return Built(launch, "cutlass", x._replace(stored=_stored.as_passed(x.stored)))


@cutlass_moe.backend("torch")
def _torch(p: CutlassFusedMoe, x: Inputs, _how: How) -> Built[Inputs]:
    """FP8 and NVFP4 in fp32: products rounded to 16 bits would often be rounded to another value between."""
    here = _chosen(p, x)  # on the host before anything is captured
    dtype = torch.float32 if x.stored.scales else x.out.dtype
    return Built(lambda x: x.out.copy_(_combined(p, x, here, dtype)), "torch")


SMOKE = CutlassFusedMoe(num_tokens=32, hidden_size=256, intermediate_size=128, num_experts=8, top_k=2)


@cutlass_moe.tier("smoke")
def _smoke() -> Iterator[Shape[CutlassFusedMoe]]:
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"cutlass_variant": "fp8"},
        {"cutlass_variant": "nvfp4"},
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


MIXTRAL = CutlassFusedMoe(num_tokens=256, hidden_size=4096, intermediate_size=14336, num_experts=8, top_k=2)
DEEPSEEK = CutlassFusedMoe(
    num_tokens=256, hidden_size=7168, intermediate_size=2048, num_experts=256, top_k=8, ep_size=32
)


@cutlass_moe.tier("default")
def _default() -> Iterator[Shape[CutlassFusedMoe]]:
    """Mixtral 8x7B whole; DeepSeek-V3 on one of 32 GPUs."""
    for model in (MIXTRAL, DEEPSEEK):
        yield from (Shape(replace(model, num_tokens=tokens)) for tokens in (16, 256, 4096))
        yield from (Shape(replace(model, cutlass_variant="fp8", num_tokens=tokens)) for tokens in (16, 4096))
        yield from (Shape(replace(model, expert_load=load)) for load in ("zipf", "one"))


@cutlass_moe.tier("full")
def _full() -> Iterator[Shape[CutlassFusedMoe]]:
    for model in (MIXTRAL, DEEPSEEK):
        for tokens in (1, 16, 64, 256, 1024, 4096, 8192):
            shape = replace(model, num_tokens=tokens)
            yield from (Shape(replace(shape, cutlass_variant=variant)) for variant in ("base", "fp8"))
            yield from (Shape(replace(shape, expert_load=load)) for load in ("zipf", "one"))
            yield Shape(replace(shape, tp_size=8, ep_size=1))
