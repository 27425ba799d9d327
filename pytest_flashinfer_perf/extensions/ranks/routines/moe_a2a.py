"""moe_a2a_dispatch_combine: tokens to the ranks that have their experts, and the experts' outputs back, summed.

For the experts stands a multiplication by the rank's number, so that the sum shows which ranks a token went to. It
writes where FlashInfer's combine reads, and is in the time of both phases together, as its kernels in the row show.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import Device, check
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import Between, RoutineOfRanks
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _routing
from pytest_flashinfer_perf.spec.params import Fault, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Shape

BOTH, DISPATCH, COMBINE = "dispatch_combine", "dispatch", "combine"
FP8 = torch.float8_e4m3fn
TOP_KS = (1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22)  # of FlashInfer's kernel


@dataclass(frozen=True)
class Exchange(Between):
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
    phase: str = flag("what is timed", default=BOTH, choices=(BOTH, DISPATCH, COMBINE))

    def faults(self) -> Iterator[Fault]:
        if self.num_experts % self.num_gpus:
            yield "num_experts", f"{self.num_experts} cannot be divided among {self.num_gpus} ranks"
        if self.top_k > self.num_experts:
            yield "top_k", f"{self.top_k} is more than the {self.num_experts} experts there are"
        if self.quant_dtype in ("fp8_block_scale", "nvfp4") and self.hidden_size % _narrow.GROUP:
            yield "hidden_size", f"must be in steps of {_narrow.GROUP} for {self.quant_dtype}, got {self.hidden_size}"


class AllToAllInputs(NamedTuple):
    """The tokens of all ranks as they are sent, for the reference, and this rank's."""

    of_all: Tensor  # [ranks, tokens, hidden]
    scales_of_all: Tensor | None  # [ranks, tokens, blocks]
    goes: Tensor  # [ranks, tokens, ranks]: whether a token of a rank has an expert on another
    input: Tensor  # [tokens, hidden], or what the experts made of all that came
    scales: Tensor | None
    experts: Tensor  # [tokens, top_k]
    weights: Tensor  # [tokens, top_k], which travel along
    numbers: Tensor  # [tokens, 1]: which token it is, counted from 1 over all ranks
    out: Tensor | None  # [tokens, hidden]


def inputs(p: Exchange, rand: torch.Generator, device: torch.device) -> AllToAllInputs:
    tokens = _shared.of_all(p, rand, device, p.num_tokens)
    of_all, scales = _sent(p, tokens)
    popular = _routing.popularity(p.expert_load, p.num_experts, range(p.top_k), rand)
    chosen = _routing.logits(popular, p.num_gpus * p.num_tokens, rand).topk(p.top_k).indices
    experts = chosen.to(torch.int32).view(p.num_gpus, p.num_tokens, p.top_k)
    homes = experts.long() // (p.num_experts // p.num_gpus)
    goes = torch.zeros(p.num_gpus, p.num_tokens, p.num_gpus, dtype=torch.bool, device=device).scatter_(-1, homes, True)
    rank = _shared.rank()
    numbers = torch.arange(p.num_tokens, dtype=torch.int32, device=device)[:, None] + (rank * p.num_tokens + 1)
    weights = torch.rand(p.num_tokens, p.top_k, generator=rand, device=device)
    own = None if scales is None else scales[rank].clone()
    out = None if p.phase == DISPATCH else torch.empty_like(tokens[rank])
    return AllToAllInputs(of_all, scales, goes, of_all[rank], own, experts[rank].clone(), weights, numbers, out)


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
    """What travelled, in fp32."""
    values = _narrow.from_e2m1(_narrow.unpacked(sent)) if sent.dtype == torch.uint8 else sent.float()
    if scales is None:
        return values
    blocks: Tensor = values.unflatten(-1, (scales.shape[-1], -1)) * scales.float()[..., None]
    return blocks.flatten(-2)


def outputs(x: AllToAllInputs) -> tuple[Tensor, ...]:
    return () if x.out is None else (x.out,)


def decoded(p: Exchange, written: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a rank got, in the order of all tokens: kernels leave it in the order in which it came."""
    if p.phase != DISPATCH:
        return written
    sent, numbers, *scales = (one.flatten(0, -2) for one in written)
    came = numbers[:, 0] > 0
    table = torch.zeros(p.num_gpus * p.num_tokens, p.hidden_size, device=sent.device)
    values = _numbers_of(sent, scales[0] if scales else None)[came]
    return (table.index_copy_(0, numbers[came, 0].long() - 1, values),)


def reference(p: Exchange, x: AllToAllInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    tokens, rank = _numbers_of(x.of_all, x.scales_of_all), _shared.rank()
    if p.phase == DISPATCH:
        return ((tokens * x.goes[..., rank, None]).flatten(0, 1),)
    times = (x.goes[rank] * torch.arange(1, p.num_gpus + 1, device=tokens.device)).sum(-1, keepdim=True)
    return (tokens[rank] * times,)


def tolerances(p: Exchange, _backend: str) -> tuple[check.Tolerance, ...]:
    return (check.EXACT if p.phase == DISPATCH else _shared.of_sums(p),)


def cost(p: Exchange, x: AllToAllInputs) -> Cost:
    """The bytes of the tokens that this rank sends, its own experts' included, and of what comes back."""
    rows = int(x.goes[_shared.rank()].sum())
    scale = 0 if x.scales is None else x.scales.shape[-1] * x.scales.itemsize
    there = x.of_all.shape[-1] * x.of_all.itemsize + scale + p.top_k * 8
    back = p.hidden_size * p.dtype.itemsize
    return Cost(0.0, rows * (there * (p.phase != COMBINE) + back * (p.phase != DISPATCH)), "float32")


def facts(_p: Exchange, x: AllToAllInputs) -> dict[str, Any]:
    got = x.goes.sum((0, 1)).float()
    return {"busiest_rank": float(got.max() / got.mean())}


moe_a2a_dispatch_combine: RoutineOfRanks[Exchange, AllToAllInputs] = RoutineOfRanks(
    name="moe_a2a_dispatch_combine",
    family="comm",
    params=Exchange,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    cost=cost,
    tolerances=tolerances,
    footprint=lambda p: p.elements * (16 * p.num_gpus + 16),
    cuda_graph=False,
    decoded=decoded,
    facts=facts,
    activations=_shared.own_or_all,
)


# By torch.distributed: rows are gathered for each rank, sent in parts whose sizes are known, and added up.


@dataclass(frozen=True)
class _Parts:
    rows: Tensor  # of this rank's tokens, in the order of the ranks that they go to
    sent: list[int]
    came: list[int]
    numbers: Tensor  # of the tokens that come

    @classmethod
    def of(cls, x: AllToAllInputs, rank: int) -> _Parts:
        here, there = x.goes[rank], x.goes[..., rank]
        numbers = there.flatten().nonzero()[:, 0] + 1
        rows = here.T.nonzero()[:, 1]
        return cls(rows, here.sum(0).tolist(), there.sum(1).tolist(), numbers[:, None].to(torch.int32))

    def sent_there(self, tokens: Tensor) -> Tensor:
        """As bytes: torch cannot index every type of 8 bits on a GPU."""
        return _exchanged(tokens.view(torch.uint8)[self.rows], self.sent, self.came).view(tokens.dtype)

    def sent_back(self, made: Tensor, out: Tensor) -> Tensor:
        back = _exchanged(made, self.came, self.sent).float()
        return out.copy_(torch.zeros_like(out, dtype=torch.float32).index_add_(0, self.rows, back))


def _exchanged(rows: Tensor, sent: list[int], came: list[int]) -> Tensor:
    given = rows.contiguous().view(torch.uint8)
    got = given.new_empty(sum(came), given.shape[1])
    dist.all_to_all_single(got, given, came, sent)
    return got.view(rows.dtype)


def _by_torch(p: Exchange, x: AllToAllInputs, options: LaunchOptions) -> Built[AllToAllInputs]:
    rank = _shared.group(p).rank
    parts = _Parts.of(x, rank)

    def dispatched(x: AllToAllInputs) -> tuple[Tensor, ...]:
        scales = () if x.scales is None else (parts.sent_there(x.scales),)
        return (parts.sent_there(x.input), parts.numbers, *scales)

    def made(x: AllToAllInputs) -> Tensor:
        tokens, _numbers, *scales = dispatched(x)
        return (_numbers_of(tokens, scales[0] if scales else None) * (rank + 1)).to(p.dtype)

    def combined(rows: Tensor, x: AllToAllInputs) -> object:
        return None if x.out is None else parts.sent_back(rows, x.out)

    if p.phase == COMBINE:
        return _shared.built(lambda x: combined(x.input, x), x, options, made)
    return _shared.built(dispatched if p.phase == DISPATCH else lambda x: combined(made(x), x), x, options)


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
    """FlashInfer's MoeAlltoAll; a phase alone by the functions that it calls, which may be repeated."""
    from flashinfer import comm

    rank, tokens = _shared.group(p).rank, p.num_tokens
    both = _exchange(p, _shared.group(p))
    where = (both.workspace, both.metainfo, tokens, rank, p.num_gpus, p.top_k)

    def payloads(x: AllToAllInputs) -> list[Tensor]:
        """FlashInfer's script sends weights where the number of a token is here, if one phase is timed alone."""
        sent = [x.input, x.weights if p.phase == BOTH else x.numbers]
        return [*sent, *([] if x.scales is None else [x.scales]), x.experts]

    def made(got: list[Tensor]) -> Tensor:
        return _numbers_of(got[0], None if x.scales is None else got[2]) * (rank + 1)

    def dispatched(x: AllToAllInputs) -> tuple[list[Tensor], int]:
        got, offset, *_ = comm.moe_a2a_dispatch(x.experts, payloads(x), *where, p.num_experts)
        return got, offset

    def in_turn(x: AllToAllInputs) -> None:
        got = both.dispatch(x.experts, payloads(x), tokens)
        space = both.get_combine_payload_tensor_in_workspace(tokens, p.hidden_size, p.dtype)
        torch.mul(got[0], rank + 1, out=space) if p.quant_dtype is None else space.copy_(made(got))
        both.combine(space, tokens, payload_in_workspace=True, output=x.out)

    def to_combine(x: AllToAllInputs) -> Tensor:
        if p not in _COMBINED:
            got, offset = dispatched(x)
            _COMBINED[p] = made(got).to(p.dtype), offset
        return _COMBINED[p][0].clone()

    def combined(x: AllToAllInputs) -> object:
        return comm.moe_a2a_combine(x.input, tokens, *where, _COMBINED[p][1], output=x.out)

    if p.phase == COMBINE:
        return _shared.built(combined, x, options, to_combine)
    return _shared.built(in_turn if p.phase == BOTH else lambda x: tuple(dispatched(x)[0][:-1]), x, options)


# What combine alone sends back, in the order of the only dispatch: each leaves rows in an order of its own in the
# memory that all calls of a process share, and a combine reads them in that of the last one.
_COMBINED: dict[Exchange, tuple[Tensor, int]] = {}


@functools.cache
def _exchange(p: Exchange, ranks: Ranks) -> Any:
    """Its memory is shared by file handles, without multicast, and cleared by each rank before another writes to it."""
    from flashinfer import comm
    from flashinfer.comm.mnnvl import MnnvlConfig, TorchDistBackend

    made = comm.MoeAlltoAll(
        mapping=comm.Mapping(rank=ranks.rank, tp_size=p.num_gpus, moe_ep_size=p.num_gpus, world_size=p.num_gpus),
        max_num_tokens=p.num_tokens,
        top_k=p.top_k,
        num_experts=p.num_experts,
        hidden_size=p.hidden_size,
        mnnvl_config=MnnvlConfig(comm_backend=TorchDistBackend()),
    )
    ranks.meet()  # FlashInfer 0.6.18 does not wait for the others to have cleared theirs
    return made


SMALL = Exchange(num_tokens=16, hidden_size=512, num_experts=16, top_k=4)
DEEPSEEK = Exchange(num_tokens=128, hidden_size=7168, num_experts=256, top_k=8)


moe_a2a_dispatch_combine.tier("smoke")(lambda: [Shape(replace(SMALL, quant_dtype="fp8"))])


@moe_a2a_dispatch_combine.tier("default")
def _default() -> Iterator[Shape[Exchange]]:
    for tokens in (16, 128, 1024):
        yield from (Shape(replace(DEEPSEEK, num_tokens=tokens, phase=phase)) for phase in (BOTH, DISPATCH, COMBINE))
    yield Shape(replace(DEEPSEEK, expert_load="zipf"))
    yield from (Shape(replace(DEEPSEEK, quant_dtype=one)) for one in ("fp8", "fp8_block_scale", "nvfp4"))
