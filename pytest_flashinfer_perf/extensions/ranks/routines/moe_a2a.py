"""moe_a2a_dispatch_combine: tokens to the ranks that have their experts, and the experts' outputs back, summed.

For the experts stands a multiplication by the rank's number, so that the sum shows which ranks a token went to. It
writes where FlashInfer's combine reads, and is in the time, as its kernels in the row show.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import Device
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import MessageParams, RoutineOfRanks
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _routing
from pytest_flashinfer_perf.spec.params import Fault, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Shape

FP8 = torch.float8_e4m3fn
TOP_KS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22)  # of FlashInfer's kernel


@dataclass(frozen=True)
class Exchange(MessageParams):
    ignores: ClassVar[tuple[str, ...]] = ("validate", "nvtx", "per_phase_timing", "max_num_tokens", "intermediate_size")
    refuses: ClassVar[Mapping[str, str]] = {
        "--real_math": "has no place here: leave it out, and time the experts by trtllm_fp4_block_scale_moe",
        "--use_lora": "has no place here: leave it out, it sends 4 bytes more of a token's thousands",
    }

    num_experts: int = flag("experts of the layer", letter="e", minimum=2, draw=(8, 16), default=256)
    top_k: int = flag("experts of a token", letter="k", minimum=1, draw=(1, 2, 4), default=8)
    quant_dtype: str | None = flag(
        "how tokens are quantised before they are sent", default=None, choices=("fp8", "fp8_block_scale", "nvfp4")
    )
    expert_load: str = flag(
        "how tokens choose: evenly, by zipf, all the same", default="uniform", choices=_routing.LOADS
    )

    def faults(self) -> Iterator[Fault]:
        if self.num_experts % self.num_gpus:
            yield "num_experts", f"{self.num_experts} cannot be divided among {self.num_gpus} ranks"
        if self.top_k > self.num_experts:
            yield "top_k", f"{self.top_k} is more than the {self.num_experts} experts there are"
        if self.quant_dtype in ("fp8_block_scale", "nvfp4") and self.hidden_size % _narrow.GROUP:
            yield (
                "hidden_size",
                f"must be in multiples of {_narrow.GROUP} for {self.quant_dtype}, got {self.hidden_size}",
            )


class AllToAllInputs(NamedTuple):
    """The tokens of all ranks as they are sent, for the reference, and this rank's."""

    of_all: Tensor  # [ranks, tokens, hidden]
    scales_of_all: Tensor | None  # [ranks, tokens, blocks]
    goes: Tensor  # [ranks, tokens, ranks]: whether a token of a rank has an expert on another
    input: Tensor  # [tokens, hidden]
    scales: Tensor | None
    experts: Tensor  # [tokens, top_k]
    weights: Tensor  # [tokens, top_k], which travel along
    out: Tensor  # [tokens, hidden]


def inputs(p: Exchange, rand: torch.Generator, device: torch.device) -> AllToAllInputs:
    tokens = _shared.of_all(p, rand, device)
    of_all, scales = _sent(p, tokens)
    popular = _routing.popularity(p.expert_load, p.num_experts, range(p.top_k), rand)
    chosen = _routing.logits(popular, p.num_gpus * p.num_tokens, rand).topk(p.top_k).indices
    experts = chosen.to(torch.int32).view(p.num_gpus, p.num_tokens, p.top_k)
    homes = experts.long() // (p.num_experts // p.num_gpus)
    goes = torch.zeros(p.num_gpus, p.num_tokens, p.num_gpus, dtype=torch.bool, device=device).scatter_(-1, homes, True)
    rank = _shared.rank()
    weights = torch.rand(p.num_tokens, p.top_k, generator=rand, device=device)
    own = None if scales is None else scales[rank].clone()
    out = torch.empty_like(tokens[rank])
    return AllToAllInputs(of_all, scales, goes, of_all[rank], own, experts[rank].clone(), weights, out)


def _sent(p: Exchange, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
    """Tokens as they travel, and their scales."""
    if p.quant_dtype is None:
        return tokens, None
    if p.quant_dtype == "fp8":  # its scale is one number, which all ranks know
        return tokens.to(FP8), None
    if p.quant_dtype == "nvfp4":
        blocked = _narrow.nvfp4(tokens, 1.0)
        return blocked.values, blocked.scales
    blocks = tokens.float().unflatten(-1, (-1, _narrow.GROUP))
    scales = blocks.abs().amax(-1) / torch.finfo(FP8).max
    return (blocks / scales[..., None]).flatten(-2).to(FP8), scales


def _numbers_of(sent: Tensor, scales: Tensor | None) -> Tensor:
    """Dequantise the rows that travelled to fp32."""
    values = _narrow.from_e2m1(_narrow.unpacked(sent)) if sent.dtype == torch.uint8 else sent.float()
    if scales is None:
        return values
    blocks: Tensor = values.unflatten(-1, (scales.shape[-1], -1)) * scales.float()[..., None]
    return blocks.flatten(-2)


def reference(p: Exchange, x: AllToAllInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    tokens, rank = _numbers_of(x.of_all, x.scales_of_all), _shared.rank()
    times = (x.goes[rank] * torch.arange(1, p.num_gpus + 1, device=tokens.device)).sum(-1, keepdim=True)
    return (tokens[rank] * times,)


def cost(p: Exchange, x: AllToAllInputs) -> Cost:
    """The bytes of the tokens that this rank sends, its own experts' included, and of what comes back."""
    rows = int(x.goes[_shared.rank()].sum())
    scale = 0 if x.scales is None else x.scales.shape[-1] * x.scales.itemsize
    there = x.of_all.shape[-1] * x.of_all.itemsize + scale + p.top_k * 8
    back = p.hidden_size * p.dtype.itemsize
    return Cost(0.0, rows * (there + back), "float32")


def facts(_p: Exchange, x: AllToAllInputs) -> dict[str, Any]:
    got = x.goes.sum((0, 1)).float()
    return {"busiest_rank": float(got.max() / got.mean())}


moe_a2a_dispatch_combine: RoutineOfRanks[Exchange, AllToAllInputs] = RoutineOfRanks(
    name="moe_a2a_dispatch_combine",
    family="comm",
    params=Exchange,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=cost,
    tolerances=lambda p, _backend: (_shared.of_sums(p),),
    footprint=lambda p: p.elements * (16 * p.num_gpus + 16),
    cuda_graph=False,
    facts=facts,
    activations=_shared.own_or_all,
)


# By torch.distributed: rows are gathered for each rank, sent in parts whose sizes are known, and added up.


@dataclass(frozen=True)
class _Parts:
    rows: Tensor  # of this rank's tokens, in the order of the ranks that they go to
    sent: list[int]
    came: list[int]

    @classmethod
    def of(cls, x: AllToAllInputs, rank: int) -> _Parts:
        here = x.goes[rank]
        return cls(here.T.nonzero()[:, 1], here.sum(0).tolist(), x.goes[..., rank].sum(1).tolist())

    def sent_there(self, tokens: Tensor) -> Tensor:
        """Send rows to their experts, as bytes: torch cannot index every type of 8 bits on a GPU."""
        return _exchanged(tokens.view(torch.uint8)[self.rows], self.sent, self.came).view(tokens.dtype)

    def sent_back(self, answers: Tensor, out: Tensor) -> None:
        back = _exchanged(answers, self.came, self.sent).float()
        out.copy_(torch.zeros_like(out, dtype=torch.float32).index_add_(0, self.rows, back))


def _exchanged(rows: Tensor, sent: list[int], came: list[int]) -> Tensor:
    sent_bytes = rows.contiguous().view(torch.uint8)
    received_bytes = sent_bytes.new_empty(sum(came), sent_bytes.shape[1])
    dist.all_to_all_single(received_bytes, sent_bytes, came, sent)
    return received_bytes.view(rows.dtype)


def _by_torch(p: Exchange, x: AllToAllInputs, options: LaunchOptions) -> Built[AllToAllInputs]:
    rank = _shared.group(p).rank
    parts = _Parts.of(x, rank)

    def launch(x: AllToAllInputs) -> None:
        scales = None if x.scales is None else parts.sent_there(x.scales)
        answers = _numbers_of(parts.sent_there(x.input), scales) * (rank + 1)
        parts.sent_back(answers.to(p.dtype), x.out)

    return _shared.built(launch, x, options)


moe_a2a_dispatch_combine.backend("torch")(_by_torch)
moe_a2a_dispatch_combine.backend("nccl", limits=_shared.on_gpus)(_by_torch)


def _compiled(p: Exchange, backend: str, _device: Device) -> Iterator[str]:
    if p.top_k not in TOP_KS:
        yield f"{backend} is compiled for a --top_k of {', '.join(map(str, TOP_KS))}, not {p.top_k}: use nccl"


@moe_a2a_dispatch_combine.backend(
    "trtllm",
    api="comm.MoeAlltoAll",
    runs_as="trtllm-alltoall",
    limits=_compiled,
    modules=("jit.comm.gen_moe_alltoall_module",),
)
def _trtllm(p: Exchange, x: AllToAllInputs, options: LaunchOptions) -> Built[AllToAllInputs]:
    rank, tokens = _shared.group(p).rank, p.num_tokens
    both = _exchange(p, _shared.group(p))

    def launch(x: AllToAllInputs) -> None:
        scales = () if x.scales is None else (x.scales,)
        got = both.dispatch(x.experts, [x.input, x.weights, *scales, x.experts], tokens)
        space = both.get_combine_payload_tensor_in_workspace(tokens, p.hidden_size, p.dtype)
        if p.quant_dtype is None:
            torch.mul(got[0], rank + 1, out=space)
        else:
            space.copy_(_numbers_of(got[0], got[2] if scales else None) * (rank + 1))
        both.combine(space, tokens, payload_in_workspace=True, output=x.out)

    return _shared.built(launch, x, options)


@functools.cache
def _exchange(p: Exchange, ranks: Ranks) -> Any:
    """An exchange; each rank clears its memory, which file handles share, before another writes to it."""
    from flashinfer import comm
    from flashinfer.comm.mnnvl import MnnvlConfig, TorchDistBackend

    exchange = comm.MoeAlltoAll(
        mapping=comm.Mapping(rank=ranks.rank, tp_size=p.num_gpus, moe_ep_size=p.num_gpus, world_size=p.num_gpus),
        max_num_tokens=p.num_tokens,
        top_k=p.top_k,
        num_experts=p.num_experts,
        hidden_size=p.hidden_size,
        mnnvl_config=MnnvlConfig(comm_backend=TorchDistBackend()),
    )
    ranks.meet()  # FlashInfer 0.6.18 does not wait for the others to have cleared theirs
    return exchange


SMALL = Exchange(num_tokens=16, hidden_size=512, num_experts=16, top_k=4)
DEEPSEEK = Exchange(num_tokens=128, hidden_size=7168, num_experts=256, top_k=8)


moe_a2a_dispatch_combine.tier("smoke")(lambda: [Shape(replace(SMALL, quant_dtype="fp8"))])


@moe_a2a_dispatch_combine.tier("default")
def _default() -> Iterator[Shape[Exchange]]:
    for tokens in (16, 128, 1024):
        yield Shape(replace(DEEPSEEK, num_tokens=tokens))
    yield Shape(replace(DEEPSEEK, expert_load="zipf"))
    yield from (Shape(replace(DEEPSEEK, quant_dtype=one)) for one in ("fp8", "fp8_block_scale", "nvfp4"))
