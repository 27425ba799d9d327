"""Shared by the three trtllm routines: flags, routing inside the call, requirements of their kernels, and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _declared, _narrow, layers
from pytest_flashinfer_perf.routines.moe import _experts, _routing, _shared
from pytest_flashinfer_perf.routines.moe._experts import Choices
from pytest_flashinfer_perf.routines.moe._routing import ExpertWeights
from pytest_flashinfer_perf.routines.moe._stored import Fp8, Nvfp4, StoredExperts
from pytest_flashinfer_perf.spec import Fault, Model, ParamError, Routine, Shape, autotune, flag
from pytest_flashinfer_perf.spec.dtypes import HALF, TORCH

CLEAR = 1e-4  # a margin that no rounding of scores decides
DRAWINGS = 100  # one or two are usual
GROUPED = "deepseek_v3"


@dataclass(frozen=True)
class TrtllmMoe(_shared.Moe):
    weight_dtype: str = flag("type of weights, before they are quantised", default="bfloat16", letter="w", choices=HALF)
    routing_method: str = flag("how experts are chosen", default=GROUPED, usual="", choices=tuple(_routing.METHODS))
    n_group: int | None = flag("groups of experts", default=None, letter="g", minimum=1, draw=(None, 2, 4))
    topk_group: int | None = flag(
        "number of groups to choose experts from", default=None, letter="of", minimum=1, draw=(None, 1, 2)
    )
    routed_scaling_factor: float = flag(
        "factor of deepseek_v3's routing weights", default=2.5, letter="x", draw=(1.0, 2.5)
    )
    use_routing_bias: bool = flag(
        "add a bias to deepseek_v3's scores when experts are chosen", default=False, letter="bias"
    )
    local_expert_offset: int = flag("first expert on this GPU", default=0, letter="from", minimum=0, draw=(0, 4))
    local_num_experts: int | None = flag(
        "number of experts on this GPU", default=None, letter="l", minimum=1, draw=(None, 4)
    )
    use_shuffled_weight: bool = flag(
        "shuffle the rows of weights for the kernel's epilogue", default=False, letter="shuf"
    )
    weight_layout: int = flag("0 MajorK, 1 MajorMn, 2 BlockMajorK", default=0, letter="layout", minimum=0)
    autotune: bool = autotune()

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        """Fit the experts into groups, if there are any, and top_k to the routing method."""
        fit = super().fitted(drawn)
        if fit["routing_method"] != GROUPED or fit["n_group"] is None:
            fit |= {"n_group": None, "topk_group": None}
        else:
            size = max(_routing.BEST_OF_A_GROUP, fit["num_experts"] // fit["n_group"])
            kept = min(fit["topk_group"] or 1, fit["n_group"])
            fit |= {"num_experts": size * fit["n_group"], "topk_group": kept, "top_k": min(fit["top_k"], size * kept)}
        if fit["routing_method"] == "llama4":
            fit["top_k"] = 1
        here = fit["local_num_experts"]
        if here is None or here + fit["local_expert_offset"] > fit["num_experts"]:
            fit |= {"local_num_experts": None, "local_expert_offset": 0}
        return fit

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from self._routing_faults()
        if self.weight_layout > 2:
            yield "weight_layout", f"must be 0, 1 or 2, got {self.weight_layout}"
        if self.here.stop > self.num_experts:
            last = f"{self.here.stop - 1} is the last expert here"
            yield "local_num_experts", f"{last}, but there are only {self.num_experts}"

    def _routing_faults(self) -> Iterator[Fault]:
        if self.routing_method == "llama4" and self.top_k != 1:
            yield "top_k", f"llama4 chooses one expert: --top_k 1, not {self.top_k}"
        for name in ("n_group", "topk_group"):
            if self.routing_method != GROUPED and (getattr(self, name) or 1) > 1:
                yield name, f"only {GROUPED} has groups: leave it out, or --routing_method {GROUPED}"
        if (self.n_group is None) != (self.topk_group is None):
            yield "topk_group", "--n_group and --topk_group go together"
        elif self.num_experts % self.groups:
            yield "n_group", f"{self.num_experts} experts cannot be in {self.groups} groups of one size"
        elif self.kept_groups > self.groups:
            yield "topk_group", f"{self.kept_groups} groups cannot be chosen of {self.groups}"
        elif self.groups > 1 and self.group_size < _routing.BEST_OF_A_GROUP:
            yield "n_group", "a group's score is that of its two best experts: it must have two"
        elif self.top_k > self.kept_groups * self.group_size:
            yield (
                "top_k",
                f"{self.top_k} is more than the {self.kept_groups * self.group_size} experts of chosen groups",
            )

    @property
    def groups(self) -> int:
        return self.n_group or 1

    @property
    def kept_groups(self) -> int:
        return self.topk_group or 1

    @property
    def group_size(self) -> int:
        return self.num_experts // self.groups

    @property
    def here(self) -> range:
        count = self.num_experts if self.local_num_experts is None else self.local_num_experts
        return range(self.local_expert_offset, self.local_expert_offset + count)

    @property
    def local_intermediate(self) -> int:
        return self.intermediate_size

    @property
    def rearranged(self) -> bool:
        return True

    @property
    def weighs_input(self) -> bool:
        return False

    @property
    def favourites(self) -> range:
        """The experts of a concentrated load: experts of this GPU, in as few groups as possible."""
        size = self.group_size if self.groups > 1 else 1
        spanned = -(-self.top_k // size) * size
        first = min(self.local_expert_offset // size * size, self.num_experts - spanned)
        return range(first, first + self.top_k)


S = TypeVar("S", bound=StoredExperts)


@dataclass(frozen=True)
class TrtllmMoeInputs(Generic[S]):
    logits: Tensor
    bias: Tensor | None
    stored: S
    out: Tensor


def choices(p: TrtllmMoe, x: TrtllmMoeInputs[Any]) -> Choices:
    chosen = _routing.routed(p, x.logits, x.bias)
    return Choices(chosen.experts, chosen.weights, p.weighs_input)


def inputs(p: TrtllmMoe, stored: S, dtype: torch.dtype, rand: torch.Generator) -> TrtllmMoeInputs[S]:
    """Draw logits of this type; tokens whose choice of experts depends on rounding are drawn again, since either answer
    would be right.
    """
    bias = _routing.bias(p.num_experts, rand) if p.use_routing_bias else None
    out = torch.empty(p.num_tokens, p.hidden_size, dtype=torch.bfloat16, device=rand.device)
    popular = _routing.popularity(p.expert_load, p.num_experts, p.favourites, rand)
    popular -= _routing.AVERSION * (p.routing_method in _routing.SIGMOIDS)
    logits = _routing.logits(popular, p.num_tokens, rand).to(dtype)
    for _ in range(DRAWINGS):
        unclear = (_routing.routed(p, logits, bias).margin < CLEAR).nonzero()[:, 0]
        if not len(unclear):
            return TrtllmMoeInputs(logits, bias, stored, out)
        logits[unclear] = _routing.logits(popular, len(unclear), rand).to(dtype)
    raise ParamError(
        f"rounding decides the experts of {len(unclear)} tokens, after {DRAWINGS} draws: take fewer experts"
    )


def drawn(p: TrtllmMoe, rand: torch.Generator) -> tuple[Tensor, ExpertWeights, ExpertWeights]:
    x, first, second = _shared.drawn(p, TORCH[p.weight_dtype], rand)
    return x.to(TORCH[p.input_dtype]).float(), first, second


def arguments(p: TrtllmMoe, x: TrtllmMoeInputs[Any]) -> Mapping[str, Any]:
    """The keywords that the three calls share; without groups there is one group."""
    grouped = p.routing_method == GROUPED
    return {
        "routing_logits": x.logits,
        "routing_bias": x.bias,
        "hidden_states": x.stored.x,
        "gemm1_weights": x.stored.first,
        "gemm2_weights": x.stored.second,
        "num_experts": p.num_experts,
        "top_k": p.top_k,
        "n_group": p.groups if grouped else None,
        "topk_group": p.kept_groups if grouped else None,
        "intermediate_size": p.intermediate_size,
        "local_expert_offset": p.local_expert_offset,
        "local_num_experts": len(p.here),
        "routed_scaling_factor": p.routed_scaling_factor,
        "routing_method_type": _routing.METHODS[p.routing_method],
        "enable_pdl": p.enable_pdl,
        "output": x.out,
    }


def limits(p: TrtllmMoe, backend: str) -> Iterator[str]:
    """Limits of the launchers in FlashInfer's csrc."""
    if p.hidden_size % 128 or p.intermediate_size % 128:
        yield f"{backend} needs a hidden_size and an intermediate_size in multiples of 128"
    if p.num_experts % 4:
        yield f"{backend} needs a num_experts in multiples of 4"
    if p.num_experts <= p.top_k:
        yield f"{backend} needs more experts than a token chooses: --top_k below {p.num_experts}"
    yield from _grouped_limits(p, backend) if p.groups > 1 else _ungrouped_limits(p, backend)


def _grouped_limits(p: TrtllmMoe, backend: str) -> Iterator[str]:
    most = 8 if p.num_experts <= 384 else 22
    if p.top_k > most:
        yield f"{backend} has {GROUPED} up to --top_k {most} of {p.num_experts} experts"
    if p.top_k == p.kept_groups * p.group_size:
        yield f"{backend} needs more experts in the chosen groups than a token chooses: another --topk_group"
    if p.kept_groups > 4 or p.groups > 8:
        yield f"{backend} has up to --n_group 8 and --topk_group 4"
    if p.group_size > 32 or p.num_experts > 512:
        yield f"{backend} has groups of up to 32 experts and up to 512 of these: more --n_group"


def _ungrouped_limits(p: TrtllmMoe, backend: str) -> Iterator[str]:
    if p.top_k > 32 or (p.routing_method == GROUPED and p.num_experts <= 384 and p.top_k > 8):
        yield f"{backend} has {p.routing_method} up to --top_k {8 if p.routing_method == GROUPED else 32}"
    if p.routing_method == "llama4" and p.num_experts > 128:
        yield f"{backend} has llama4 up to 128 experts"
    if p.num_experts > 2048:
        yield f"{backend} has up to 2048 experts"


def only_major_k(p: TrtllmMoe, backend: str) -> Iterator[str]:
    if p.weight_layout != 0:
        yield f"{backend} takes weights in MajorK alone: --weight_layout 0"


EPILOGUES = ("Swiglu", "Geglu", "Relu2", "Identity")


def activation_limits(p: TrtllmMoe, backend: str, api: str, *, stepped: bool = True) -> Iterator[str]:
    has = EPILOGUES + ("SwigluStep",) * (stepped and _declared.documented(api, "SwigluStep"))
    if p.activation_type not in has:
        yield f"{backend} has {', '.join(has)} here, not {p.activation_type}"


def activation(p: TrtllmMoe) -> int:
    from flashinfer.tllm_enums import ActivationType

    return int(ActivationType[p.activation_type])


def to_between(p: TrtllmMoe, stored: Fp8 | Nvfp4) -> Tensor:
    """The factor of an activation, [experts]; with a gate, the gated values are still in stored units."""
    units = stored.by_first if p.activation_type in _experts.GATED else torch.ones_like(stored.by_first)
    return stored.between * units


def first_rows(p: TrtllmMoe, weights: Tensor) -> Tensor:
    """Gated rows and their gates in turn, then shuffled, since the activation is in the product's epilogue."""
    return _narrow.shuffled_rows(_narrow.paired_rows(weights) if p.activation_type in _experts.GATED else weights)


# The shapes that the three routines are measured with.

P = TypeVar("P", bound=TrtllmMoe)
Changes = Sequence[Mapping[str, Any]]

GROUPS = {"n_group": 4, "topk_group": 2, "use_routing_bias": True}
LLAMA4 = {"routing_method": "llama4", "top_k": 1}
SMOKE: Mapping[str, Any] = {
    "num_tokens": 16,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_experts": 16,
    "top_k": 4,
    **GROUPS,
}
UNGROUPED = {"n_group": None, "topk_group": None, "use_routing_bias": False}
METHODS: Changes = (
    {},
    {"num_tokens": 1},
    *({**UNGROUPED, "routing_method": method} for method in ("renormalize", "renormalize_naive", "topk")),
    {**UNGROUPED, **LLAMA4},
    UNGROUPED,
    {"expert_load": "zipf"},
    {"expert_load": "one"},
    {"local_expert_offset": 8, "local_num_experts": 8},
)


def declare_shapes(routine: Routine[P, Any], base: P, smoke: Changes, each: Changes = ({},)) -> None:
    """Every routing method, and the routine's own changes, in `smoke`; each kind of weights of models in the others."""
    routine.tier("smoke")(lambda: (Shape(replace(base, **change)) for change in (*METHODS, *smoke)))

    def shapes(model: Model, tokens: Sequence[int], *changes: Mapping[str, Any]) -> Iterator[Shape[P]]:
        for change in changes:
            yield from (Shape(routine.params(num_tokens=t, **{**model.parameters, **change}), model) for t in tokens)

    @routine.tier("default")
    def _default() -> Iterator[Shape[P]]:
        """DeepSeek-V3 on one of 32 GPUs, Qwen3-30B-A3B whole; few tokens of the model that mono_moe is made for."""
        deepseek, qwen3 = layers.experts("deepseek-v3", ep=32), layers.experts("qwen3-30b-a3b")
        yield from shapes(deepseek, (16, 256, 4096), *each)
        yield from shapes(qwen3, (1, 4096), *each)
        for model in (deepseek, qwen3):
            yield from shapes(model, (256,), {"expert_load": "zipf"}, {"expert_load": "one"})
            yield from (replace(shape, backends=("trtllm",)) for shape in shapes(model, (256,), {"autotune": True}))
        yield from shapes(layers.experts("llama-4-maverick", ep=8), (16, 4096), {})
        yield from shapes(layers.experts("qwen3.5-35b-a3b"), (1, 4, 8), {})

    @routine.sweep(layers.experts)
    def _sweep(model: Model) -> Iterator[Shape[P]]:
        """The shapes of a model; none if its weights on so many GPUs do not fit into blocks."""
        with suppress(ParamError):
            yield from shapes(model, layers.TOKENS, *each)
