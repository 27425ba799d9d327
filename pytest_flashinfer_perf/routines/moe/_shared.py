"""Shared by the MoE routines: flags, the choices of experts on this GPU, their cost, and the backend `torch`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Rows, Tolerance
from pytest_flashinfer_perf.routines.moe import _experts, _routing, _stored
from pytest_flashinfer_perf.routines.moe._experts import Choices, ChosenExpert
from pytest_flashinfer_perf.routines.moe._routing import ExpertWeights
from pytest_flashinfer_perf.routines.moe._stored import StoredExperts
from pytest_flashinfer_perf.spec.dtypes import FP8, HALF, TORCH
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.params import Fault, Params, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Routine

OF_ADAPTERS = ("rank", "num_loras", "num_slices")


@dataclass(frozen=True)
class Moe(Params):
    ignores: ClassVar[tuple[str, ...]] = ("tile_tokens_dim", "use_functional_api", "b12x_quant_mode", *OF_ADAPTERS)

    num_tokens: int = flag("tokens", letter="t", minimum=1, draw=(1, 7, 33), most=1024, tiles=(8, 64, 128))
    hidden_size: int = flag("width of a token", letter="h", minimum=16, draw=(128, 160), most=2048, step=128)
    intermediate_size: int = flag(
        "width of an expert's hidden layer", letter="i", minimum=16, draw=(64, 160), most=2048, step=128
    )
    num_experts: int = flag("experts of the layer", letter="e", minimum=1, draw=(8, 16), most=256, step=4)
    top_k: int = flag("number of experts per token", letter="k", minimum=1, draw=(1, 2, 4), most=8)
    input_dtype: str = flag("type of tokens, before they are quantised", default="bfloat16", choices=HALF)
    activation_type: str = flag(
        "activation function between the products",
        default="Swiglu",
        choices=_experts.ACTIVATIONS,
        spellings=("activation-type", "activation_type", "gated_act"),
    )
    expert_load: str = flag(
        "how tokens choose: evenly, by zipf, all the same", default="uniform", choices=_routing.LOADS
    )
    enable_pdl: bool = flag("programmatic dependent launch", default=False, letter="pdl")

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**drawn, "top_k": min(drawn["top_k"], drawn["num_experts"])}

    def faults(self) -> Iterator[Fault]:
        if self.top_k > self.num_experts:
            yield "top_k", f"{self.top_k} is more than the {self.num_experts} experts there are"

    @property
    @abstractmethod
    def here(self) -> range:
        """The experts on this GPU."""

    @property
    @abstractmethod
    def local_intermediate(self) -> int:
        """The part of each expert's hidden layer on this GPU."""

    @property
    def rearranged(self) -> bool:
        """Whether a backend gets the weights in an order of its own, as a copy."""
        return False

    @property
    def columns(self) -> int:
        return _experts.columns(self.activation_type, self.local_intermediate)


class MoeInputs(Protocol):
    @property
    def stored(self) -> StoredExperts: ...
    @property
    def out(self) -> Tensor: ...


M = TypeVar("M", bound=Moe)
X = TypeVar("X", bound=MoeInputs)


@dataclass(frozen=True)
class Precision:
    """The dtype of products, the bytes of a stored weight and of an intermediate value, scales included, and the
    tolerance. `of_kernels` is the wider tolerance of kernels that round intermediate values by scales of their own.
    """

    dtype: str
    weight_bytes: float
    between_bytes: float
    tolerance: Tolerance
    of_kernels: Tolerance | None = None


EXPERT_BYTES = 40  # of a weight on its way: in fp32, scaled, rounded, and in the integers that FP4 is packed from
# Another order of summation; and intermediate values rounded by scales that the kernel computes.
SUMMED = Tolerance(1e-2, 2e-2, 5e-3)
ROUNDED_ON_THE_WAY = Tolerance(5e-2, 1.5e-1, 1.5e-2, matched=0.99)
IN_BLOCKS = Precision(FP8[0], 1 + 4 / 128**2, 1 + 4 / 128, SUMMED, ROUNDED_ON_THE_WAY)
IN_NVFP4 = Precision("fp4", 0.5625, 0.5625, Tolerance(5e-2, 2e-1, 1.5e-2))


def drawn(p: Moe, dtype: torch.dtype, rand: torch.Generator) -> tuple[Tensor, ExpertWeights, ExpertWeights]:
    """Tokens, and both weights of the experts on this GPU, to be drawn in this order."""
    x = _routing.tokens(p.num_tokens, p.hidden_size, rand)
    first = ExpertWeights(len(p.here), p.columns, p.hidden_size, dtype, rand)
    return x, first, ExpertWeights(len(p.here), p.hidden_size, p.local_intermediate, dtype, rand)


@dataclass(frozen=True)
class _Computation(Generic[M, X]):
    """The functions of a routine, derived from `choices` and `precision`."""

    choices: Callable[[M, X], Choices]
    precision: Callable[[M], Precision]

    def chosen(self, p: M, x: X) -> list[ChosenExpert]:
        return list(_experts.chosen(self.choices(p, x).selected, p.here.start, len(p.here)))

    def reference(self, p: M, x: X, rows: Tensor | None = None) -> tuple[Tensor]:
        """The answer; with `rows` only for these tokens."""
        layer, choices = x.stored.layer(), self.choices(p, x)
        if rows is not None:
            layer = layer._replace(tokens=layer.tokens[rows])
            choices = choices._replace(selected=choices.selected[rows], weights=choices.weights[rows])
        here = list(_experts.chosen(choices.selected, p.here.start, len(p.here)))
        return (_experts.answer(layer, p.activation_type, choices, here, torch.float32),)

    def rows(self, p: M, x: X) -> Rows:
        """Rows to sample from; the edges are the first and last token of each expert."""
        ends = {int(token) for _, tokens, _ in self.chosen(p, x) for token in (tokens[0], tokens[-1])}
        return Rows(p.num_tokens, torch.tensor(sorted(ends), dtype=torch.int64, device=x.out.device))

    def tolerances(self, p: M, backend: str) -> tuple[Tolerance]:
        precision = self.precision(p)
        return (precision.tolerance if backend == "torch" or precision.of_kernels is None else precision.of_kernels,)

    def cost(self, p: M, x: X) -> Cost:
        """Products of the choices that fall on experts here; these experts' weights once, and all the rest."""
        of_experts = sum(t.nbytes for t in _stored.of_experts(x.stored))
        around = sum(t.nbytes for t in tensors(x)) - of_experts
        facts, per_choice = self.facts(p, x), 2 * (p.columns + p.local_intermediate) * p.hidden_size
        used = facts["active_experts"] / len(p.here)
        return Cost(facts["expert_tokens"] * per_choice, round(used * of_experts) + around, self.precision(p).dtype)

    def facts(self, p: M, x: X) -> Mapping[str, Any]:
        """The load of experts, and the bytes of intermediate values, which a fused kernel need not write."""
        loads = [len(rows) for _, rows, _ in self.chosen(p, x)]
        return {
            "active_experts": len(loads),
            "expert_tokens": sum(loads),
            "largest_load": max(loads, default=0),
            "intermediate_bytes": 2 * sum(loads) * p.local_intermediate * self.precision(p).between_bytes,
        }

    def footprint(self, p: M) -> int:
        """Weights as stored, and in a backend's order, where the first ones are there once more on the way; what an
        expert needs in fp32 while it is drawn or multiplied, and the row of each choice.
        """
        first, second = p.columns * p.hidden_size, p.hidden_size * p.local_intermediate
        weights = first + second + 2 * first * p.rearranged
        between = p.num_tokens * p.top_k * (3 * p.columns + 2 * p.hidden_size) * 4
        tokens = p.num_tokens * (p.num_experts * 24 + p.hidden_size * 48)
        stored = round(len(p.here) * weights * self.precision(p).weight_bytes)
        return stored + EXPERT_BYTES * first + between + tokens

    def in_torch(self, p: M, x: X, _options: LaunchOptions) -> Built[X]:
        """The products in fp32 where intermediate values are rounded; in 16 bits they would be rounded differently."""
        here = self.chosen(p, x)  # on the host before anything is captured
        dtype = TORCH[self.precision(p).dtype] if self.precision(p).dtype in HALF else torch.float32

        def launch(x: X) -> Tensor:
            layer, choices = x.stored.layer(), self.choices(p, x)
            return x.out.copy_(_experts.answer(layer, p.activation_type, choices, here, dtype))

        return Built(launch, "torch")


def routine(
    name: str,
    params: type[M],
    inputs: Callable[[M, torch.Generator, torch.device], X],
    choices: Callable[[M, X], Choices],
    precision: Callable[[M], Precision],
) -> Routine[M, X]:
    """The reference and `torch` compute with the stored values; they differ in the type of 16-bit products."""
    computation = _Computation(choices, precision)
    declared = Routine(
        name,
        family="moe",
        params=params,
        inputs=inputs,
        outputs=lambda x: (x.out,),
        reference=computation.reference,
        cost=computation.cost,
        tolerances=computation.tolerances,
        footprint=computation.footprint,
        cuda_graph=True,
        facts=computation.facts,
        rows=computation.rows,
        activations=lambda x: x.stored.x,
    )
    declared.backend("torch")(computation.in_torch)
    return declared
