"""moe_ep_mega: a layer of experts that GPUs share, by one call: tokens there, both products, and their sums back.

By FlashInfer's `MoEEpLayer` with the kernels for Hopper that push tokens into the other GPUs' memory. Weights are FP8
in blocks, as DeepSeek has them; each rank has those of its own experts, and the reference those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import Device, check
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import Between, RoutineOfRanks
from pytest_flashinfer_perf.routines._narrow import GROUP
from pytest_flashinfer_perf.routines.moe import _experts, _routing, _stored
from pytest_flashinfer_perf.routines.moe._experts import Choices
from pytest_flashinfer_perf.routines.moe._routing import ExpertWeights
from pytest_flashinfer_perf.routines.moe._shared import EXPERT_BYTES, IN_BLOCKS
from pytest_flashinfer_perf.routines.moe._stored import Blockwise
from pytest_flashinfer_perf.spec.params import Fault, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Shape

SWIGLU = "Swiglu"
TOP_KS = (1, 2, 4, 6, 8)  # of FlashInfer's kernel
KERNELS = "moe_ep.kernel_src.sm90.push_style_megamoe"


@dataclass(frozen=True)
class Mega(Between):
    intermediate_size: int = flag(
        "width of an expert's hidden layer", letter="i", minimum=128, draw=(128,), default=2048
    )
    num_experts: int = flag("experts of the layer", letter="e", minimum=2, draw=(8, 16), default=64)
    top_k: int = flag("experts of a token", letter="k", minimum=1, draw=(1, 2, 4), default=8)
    expert_load: str = flag(
        "how tokens choose: evenly, by zipf, all the same", default="uniform", choices=_routing.LOADS
    )

    def faults(self) -> Iterator[Fault]:
        if self.num_experts % self.num_gpus:
            yield "num_experts", f"{self.num_experts} cannot be divided among {self.num_gpus} ranks"
        if self.top_k > self.num_experts:
            yield "top_k", f"{self.top_k} is more than the {self.num_experts} experts there are"
        for name in ("hidden_size", "intermediate_size"):
            if getattr(self, name) % GROUP:
                yield name, f"must be in steps of {GROUP}, the width of a block, got {getattr(self, name)}"

    @property
    def own_experts(self) -> int:
        return self.num_experts // self.num_gpus

    @property
    def weights(self) -> int:
        """The numbers of an expert."""
        return 3 * self.hidden_size * self.intermediate_size


class MegaInputs(NamedTuple):
    """What all ranks give is for the reference; a call has its own rank's part alone."""

    of_all: Tensor  # [ranks, tokens, hidden]
    input: Tensor  # [tokens, hidden]
    experts: Tensor  # [tokens, top_k]
    weights: Tensor  # [tokens, top_k]
    layer: Blockwise | None  # all experts
    out: Tensor  # [tokens, hidden]


def inputs(p: Mega, rand: torch.Generator, device: torch.device) -> MegaInputs:
    everybodys = _shared.of_all(p, rand, device, p.num_tokens)
    popular = _routing.popularity(p.expert_load, p.num_experts, range(p.top_k), rand)
    logits = _routing.logits(popular, p.num_gpus * p.num_tokens, rand).unflatten(0, (p.num_gpus, p.num_tokens))
    largest, experts = logits[_shared.rank()].topk(p.top_k)
    first = ExpertWeights(p.num_experts, 2 * p.intermediate_size, p.hidden_size, p.dtype, rand)
    second = ExpertWeights(p.num_experts, p.hidden_size, p.intermediate_size, p.dtype, rand)
    own = everybodys[_shared.rank()]
    layer = _stored.in_blocks(own[:0].float(), first, second, left=p.dtype)
    return MegaInputs(everybodys, own, experts.int(), largest.softmax(-1), layer, torch.empty_like(own))


def reference(p: Mega, x: MegaInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    assert x.layer is not None
    layer = x.layer._replace(x=x.of_all[_shared.rank()]).layer()
    here = list(_experts.chosen(x.experts, 0, p.num_experts))
    return (_experts.answer(layer, SWIGLU, Choices(x.experts, x.weights), here, torch.float32),)


def tolerances(_p: Mega, backend: str) -> tuple[check.Tolerance, ...]:
    """FlashInfer rounds tokens, intermediate values and what comes back to FP8, by scales of its own."""
    return (IN_BLOCKS.tolerance if backend == "torch" else IN_BLOCKS.of_kernels or IN_BLOCKS.tolerance,)


moe_ep_mega: RoutineOfRanks[Mega, MegaInputs] = RoutineOfRanks(
    name="moe_ep_mega",
    family="comm",
    params=Mega,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=lambda p, _x: Cost(
        2.0 * p.weights * p.num_tokens * p.top_k, p.own_experts * p.weights * IN_BLOCKS.weight_bytes, IN_BLOCKS.dtype
    ),
    tolerances=tolerances,
    footprint=lambda p: 2 * p.num_experts * p.weights + EXPERT_BYTES * p.weights + 64 * p.num_gpus * p.elements,
    cuda_graph=False,
    activations=_shared.own_or_all,
)


def _built(launch: Callable[[MegaInputs], object], x: MegaInputs, options: LaunchOptions) -> Built[MegaInputs]:
    """The weights are held, and not copied to each placement: they are larger than any cache."""
    return _shared.built(launch, x._replace(layer=None), options)


def _own(p: Mega, x: MegaInputs, rank: int) -> Blockwise:
    """The weights of this rank's experts."""
    assert x.layer is not None
    mine = slice(rank * p.own_experts, (rank + 1) * p.own_experts)
    return Blockwise(x.layer.x, None, *(part[mine] for part in x.layer[2:] if part is not None))


@moe_ep_mega.backend("torch")
def _torch(p: Mega, x: MegaInputs, options: LaunchOptions) -> Built[MegaInputs]:
    """Each rank has all tokens, and what its experts make of them is summed: gloo on a CPU."""
    rank = _shared.group(p).rank
    own = _own(p, x, rank)

    def gathered(part: Tensor) -> Tensor:
        whole = part.new_empty(p.num_gpus * p.num_tokens, part.shape[1])
        dist.all_gather_into_tensor(whole, part.contiguous())
        return whole

    def launch(x: MegaInputs) -> None:
        tokens, experts, weights = map(gathered, (x.input, x.experts, x.weights))
        here = list(_experts.chosen(experts, rank * p.own_experts, p.own_experts))
        layer = own._replace(x=tokens).layer()
        total = _experts.answer(layer, SWIGLU, Choices(experts, weights), here, torch.float32)
        dist.all_reduce(total)
        x.out.copy_(total.unflatten(0, (p.num_gpus, p.num_tokens))[rank])

    return _built(launch, x, options)


def _compiled(p: Mega, backend: str, _device: Device) -> Iterator[str]:
    if p.top_k not in TOP_KS:
        yield f"{backend} is compiled for a --top_k of {', '.join(map(str, TOP_KS))}, not {p.top_k}"
    if p.input_dtype != "bfloat16":
        yield f"{backend} takes --input_dtype bfloat16"


@moe_ep_mega.backend(
    "sm90-push",
    api="moe_ep.Sm90_Fp8_Fp8_Bf16_PushCuda_MegaMoeConfig",
    runs_as="moe-ep-sm90-push",
    limits=_compiled,
    modules=(f"{KERNELS}.gen_sm90_push_a2a_module", f"{KERNELS}.gen_sm90_push_fp8_moe_gemm_module"),
)
def _pushed(p: Mega, x: MegaInputs, options: LaunchOptions) -> Built[MegaInputs]:
    from flashinfer.moe_ep import MoEEpTensors

    forward = _layer(p, x, _shared.group(p).rank).forward
    return _built(lambda x: forward(MoEEpTensors(x.input, x.experts, x.weights, output=x.out)), x, options)


def _layer(p: Mega, x: MegaInputs, rank: int) -> Any:
    """FlashInfer's layer; layers of one process share the memory that other ranks write to."""
    from flashinfer import moe_ep
    from flashinfer.moe_ep.kernel_src.sm90.push_style_megamoe import Sm90PushWeights

    own = _own(p, x, rank)
    first, scales = (torch.cat(part.chunk(2, 1)[::-1], 1) for part in (own.first, own.first_scales))  # gates lead there
    kernel = moe_ep.Sm90_Fp8_Fp8_Bf16_PushCuda_MegaMoeConfig(intermediate_size=p.intermediate_size, top_k=p.top_k)
    weights = Sm90PushWeights(first, scales, own.second.contiguous(), own.second_scales.contiguous())
    return moe_ep.MoEEpLayer(
        moe_ep.BootstrapConfig(world_size=p.num_gpus, rank=rank, auto_bootstrap=False),
        moe_ep.FleetParams(
            num_experts=p.num_experts, max_tokens_per_rank=p.num_tokens, token_hidden_size=p.hidden_size
        ),
        None,
        backend=moe_ep.MegaConfig(kernel, preprocess_weights=False, transformed_weights=weights),
    )


SMALL = Mega(num_tokens=16, hidden_size=256, intermediate_size=128, num_experts=8, top_k=2)


moe_ep_mega.tier("smoke")(lambda: [Shape(SMALL)])


@moe_ep_mega.tier("default")
def _default() -> Iterator[Shape[Mega]]:
    """A quarter of DeepSeek-V3's experts."""
    yield from (Shape(Mega(num_tokens=tokens, hidden_size=7168)) for tokens in (16, 128, 1024))
