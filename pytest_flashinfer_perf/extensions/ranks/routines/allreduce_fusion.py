"""allreduce_fusion: the sum of all ranks' tensors, alone or with the residual, norm and FP8 that follow it in a layer.

By FlashInfer's TensorRT-LLM kernels and vLLM's custom all-reduce, beside NCCL. Where a backend works in a buffer of its
own, copying the message there is part of the call, as it is of a layer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import Device, check
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import MessageParams, RoutineOfRanks
from pytest_flashinfer_perf.spec.params import flag
from pytest_flashinfer_perf.spec.routine import Built, CannotRunError, Cost, LaunchOptions, Shape

MULTICAST = "{} needs NVLink multicast, which can put GPUs out of service"
SUM, NORM = "allreduce", "ar_residual_rmsnorm"
STATIC, DYNAMIC = "ar_residual_rmsnorm_fp8", "ar_residual_rmsnorm_dynamic_fp8"
CODES = {  # their names in FlashInfer's AllReduceFusionPattern
    SUM: "kAllReduce",
    NORM: "kARResidualRMSNorm",
    STATIC: "kARResidualRMSNormFP8Quant",
    DYNAMIC: "kARResidualRMSNormDynamicFP8Quant",
}
EPS = 1e-5
FP8 = torch.float8_e4m3fn
SCALE = 0.02  # of the static pattern: a norm's values are within 5 or so, e4m3's within 448
VLLM_CTAS = 36


@dataclass(frozen=True)
class AllReduce(MessageParams):
    ignores: ClassVar[tuple[str, ...]] = ("validate",)  # answers are always checked

    pattern: str = flag("what follows the sum in one kernel", default=SUM, choices=tuple(CODES))
    enable_pdl: bool = flag("programmatic dependent launch", default=False, letter="pdl")

    @property
    def is_fp8(self) -> bool:
        return self.pattern in (STATIC, DYNAMIC)


class AllReduceInputs(NamedTuple):
    """`of_all` is for the reference; a call is given its own rank's part alone."""

    of_all: Tensor  # [ranks, tokens, hidden]
    input: Tensor  # [tokens, hidden]
    residual: Tensor | None  # [tokens, hidden]
    gamma: Tensor | None  # [hidden]
    scale: Tensor | None  # [1], or [tokens, 1] that the call writes
    out: Tensor  # the sum, the norm or the quantised norm
    residual_out: Tensor | None


def inputs(p: AllReduce, rand: torch.Generator, device: torch.device) -> AllReduceInputs:
    everybodys = _shared.of_all(p, rand, device)
    own = everybodys[_shared.rank()]
    if p.pattern == SUM:
        return AllReduceInputs(everybodys, own, None, None, None, torch.empty_like(own), None)
    residual = torch.randn(own.shape, generator=rand, device=device).to(p.dtype)
    gamma = (1 + 0.1 * torch.randn(p.hidden_size, generator=rand, device=device)).to(p.dtype)
    scale = {STATIC: torch.full((1,), SCALE, device=device), DYNAMIC: torch.empty(p.num_tokens, 1, device=device)}
    out = torch.empty_like(own, dtype=FP8 if p.is_fp8 else p.dtype)
    return AllReduceInputs(everybodys, own, residual, gamma, scale.get(p.pattern), out, torch.empty_like(own))


def outputs(x: AllReduceInputs) -> tuple[Tensor, ...]:
    scales = (x.scale,) if x.scale is not None and x.scale.dim() == 2 else ()
    return tuple(one for one in (x.out, x.residual_out, *scales) if one is not None)


def decoded(p: AllReduce, written: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Quantised norms in numbers, by the scales that the call wrote or was given."""
    if not p.is_fp8:
        return written
    quantised, residual, *scales = written
    return quantised.float() * (scales[0] if scales else SCALE), residual


def reference(_p: AllReduce, x: AllReduceInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    return _followed(x.of_all.float().sum(0), x)


def _followed(total: Tensor, x: AllReduceInputs) -> tuple[Tensor, ...]:
    """Apply the pattern to the sum, in fp32 and not yet quantised."""
    if x.residual is None or x.gamma is None:
        return (total,)
    residual = total + x.residual.float()
    return residual * torch.rsqrt(residual.square().mean(-1, keepdim=True) + EPS) * x.gamma.float(), residual


def tolerances(p: AllReduce, _backend: str) -> tuple[check.Tolerance, ...]:
    """The norm divides the residual's error by its size; an element in FP8 is rounded once more."""
    unit, of_sum = torch.finfo(p.dtype).eps, _shared.of_sums(p)
    if p.pattern == SUM:
        return (of_sum,)
    coarse = check.Tolerance(torch.finfo(FP8).eps, p.num_gpus * unit + 2e-2, 1e-2)
    return (coarse if p.is_fp8 else check.Tolerance(4 * unit, 2 * p.num_gpus * unit, unit), of_sum)


def cost(p: AllReduce, x: AllReduceInputs) -> Cost:
    """The cost: the bytes are the message's, from which the row computes nccl-tests' bandwidths."""
    return Cost((p.num_gpus - 1) * p.elements, p.elements * x.input.itemsize, "float32")


allreduce_fusion: RoutineOfRanks[AllReduce, AllReduceInputs] = RoutineOfRanks(
    name="allreduce_fusion",
    family="comm",
    params=AllReduce,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    cost=cost,
    tolerances=tolerances,
    footprint=lambda p: p.elements * (4 * p.num_gpus + 32),
    cuda_graph=False,
    decoded=decoded,
    activations=_shared.own_or_all,
    collective="all_reduce",
)


@allreduce_fusion.backend("torch")
def _torch(p: AllReduce, x: AllReduceInputs, options: LaunchOptions) -> Built[AllReduceInputs]:
    """The default group of torch.distributed, in fp32: gloo on a CPU."""
    _shared.group(p)

    def launch(x: AllReduceInputs) -> None:
        total = x.input.float()
        dist.all_reduce(total)
        first, *residual = _followed(total, x)
        if p.is_fp8 and x.scale is not None:
            if p.pattern == DYNAMIC:
                x.scale.copy_(first.abs().amax(-1, keepdim=True) / torch.finfo(FP8).max)
            first = first / x.scale
        for written, value in zip(outputs(x), (first, *residual), strict=False):
            written.copy_(value)

    return _shared.built(launch, x, options)


def _unfused(p: AllReduce, backend: str, device: Device) -> Iterator[str]:
    yield from _shared.on_gpus(p, backend, device)
    if p.is_fp8:
        yield f"{backend} has no {p.pattern}: it is of the trtllm backends"


@allreduce_fusion.backend("nccl", limits=_unfused)
def _nccl(p: AllReduce, x: AllReduceInputs, options: LaunchOptions) -> Built[AllReduceInputs]:
    """torch.distributed's all-reduce, in place on a copy; FlashInfer's fused_add_rmsnorm follows it."""
    _shared.group(p)

    def launch(x: AllReduceInputs) -> None:
        x.out.copy_(x.input)
        dist.all_reduce(x.out)
        _normed(x)

    return _shared.built(launch, x, options)


def _normed(x: AllReduceInputs) -> None:
    if x.residual is None or x.residual_out is None or x.gamma is None:
        return
    from flashinfer.norm import fused_add_rmsnorm

    x.residual_out.copy_(x.residual)
    fused_add_rmsnorm(x.out, x.residual_out, x.gamma, EPS)


def _strategy(p: AllReduce, backend: str, _device: Device) -> Iterator[str]:
    if backend == "trtllm-twoshot" and p.num_tokens <= p.num_gpus:
        yield f"two-shot needs more tokens than the {p.num_gpus} ranks, not {p.num_tokens}"
    if p.hidden_size % 8:
        yield f"{backend} reads 16 bytes at a time: the hidden size must be in multiples of 8, not {p.hidden_size}"


@allreduce_fusion.backend(
    "trtllm",
    "trtllm-oneshot",
    "trtllm-twoshot",
    api="comm.allreduce_fusion",
    runs_as="trtllm-allreduce",
    limits=_strategy,
    modules=("jit.comm.gen_trtllm_comm_module",),
)
def _trtllm(p: AllReduce, x: AllReduceInputs, options: LaunchOptions) -> Built[AllReduceInputs]:
    """One kernel for the whole pattern; `trtllm` chooses between one-shot and two-shot itself."""
    from flashinfer import comm

    pattern = getattr(comm.AllReduceFusionPattern, CODES[p.pattern], None)
    if pattern is None:
        raise CannotRunError(f"this FlashInfer has no pattern {CODES[p.pattern]}")
    space = _workspace(p, _shared.group(p).rank)
    strategy = {"trtllm": None, "trtllm-oneshot": True, "trtllm-twoshot": False}[options.backend]

    def launch(x: AllReduceInputs) -> None:
        """Only what the pattern has is passed on."""
        written: dict[str, Any] = {"residual_out": x.residual_out, "residual_in": x.residual, "rms_gamma": x.gamma}
        written["output" if p.pattern == SUM else "quant_out" if p.is_fp8 else "norm_out"] = x.out
        written["scale_out" if p.pattern == DYNAMIC else "scale_factor"] = x.scale
        how = {"launch_with_pdl": p.enable_pdl, "use_oneshot": strategy, "rms_eps": EPS}
        tensors = {name: value for name, value in written.items() if value is not None}
        comm.allreduce_fusion(x.input, space, pattern, **tensors, **how)

    return _shared.built(launch, x, options)


@functools.cache  # made once in a process, which is a rank of one case: all placements use it
def _workspace(p: AllReduce, rank: int) -> Any:
    from flashinfer import comm

    return comm.create_allreduce_fusion_workspace(
        backend="trtllm",
        world_size=p.num_gpus,
        rank=rank,
        max_token_num=p.num_tokens,
        hidden_dim=p.hidden_size,
        dtype=p.dtype,
        force_oneshot_support=True,
        group=dist.group.WORLD,
    )


def _vllm_limits(p: AllReduce, backend: str, _device: Device) -> Iterator[str]:
    if p.num_gpus not in (2, 4, 6, 8):
        yield f"{backend} is for 2, 4, 6 or 8 GPUs, not {p.num_gpus}: use nccl"
    if p.pattern != SUM:
        yield f"{backend} has no {p.pattern}: it is of the trtllm backends"


@allreduce_fusion.backend(
    "vllm",
    api="comm.vllm_all_reduce",
    runs_as="vllm-allreduce",
    limits=_vllm_limits,
    modules=("jit.comm.gen_vllm_comm_module",),
)
def _vllm(p: AllReduce, x: AllReduceInputs, options: LaunchOptions) -> Built[AllReduceInputs]:
    """vLLM's custom all-reduce, which FlashInfer ships; it chooses between one-shot and two-shot itself."""
    from flashinfer import comm

    handle, buffer, size = _registered(p, _shared.group(p).rank, x.input.device)

    def launch(x: AllReduceInputs) -> None:
        comm.vllm_all_reduce(handle, x.input, x.out, buffer, size, VLLM_CTAS)

    return _shared.built(launch, x, options)


@functools.cache
def _registered(p: AllReduce, rank: int, device: torch.device) -> tuple[int, int, int]:
    """The handle of the all-reduce, and the buffer that it copies messages to, with its size."""
    from flashinfer import comm

    size = p.elements * p.dtype.itemsize
    signals = comm.create_shared_buffer(comm.vllm_meta_size() + size, dist.group.WORLD)
    buffers = comm.create_shared_buffer(size, dist.group.WORLD)
    _kept.append(torch.empty(8 << 20, dtype=torch.uint8, device=device))  # the handle holds no reference
    handle = comm.vllm_init_custom_ar(signals, _kept[-1], rank, True)
    comm.vllm_register_buffer(handle, buffers)
    return handle, buffers[rank], size


_kept: list[Tensor] = []


@allreduce_fusion.backend("mnnvl", "auto", limits=lambda _p, b, _d: iter([MULTICAST.format(b)]))
def _mnnvl(_p: AllReduce, _x: AllReduceInputs, options: LaunchOptions) -> Built[AllReduceInputs]:
    """`auto` may take it."""
    raise CannotRunError(MULTICAST.format(options.backend))


@allreduce_fusion.tier("smoke")
def _smoke() -> Iterator[Shape[AllReduce]]:
    yield from (Shape(AllReduce(num_tokens=16, hidden_size=512, pattern=pattern)) for pattern in (SUM, DYNAMIC))


@allreduce_fusion.tier("default")
def _default() -> Iterator[Shape[AllReduce]]:
    """Shapes from a decode step's message to a prefill's."""
    for pattern in (SUM, NORM):
        yield from (Shape(AllReduce(num_tokens=t, hidden_size=8192, pattern=pattern)) for t in (16, 128, 1024, 4096))
    yield from (Shape(AllReduce(num_tokens=128, hidden_size=8192, pattern=one)) for one in (STATIC, DYNAMIC))


@allreduce_fusion.tier("full")
def _full() -> Iterator[Shape[AllReduce]]:
    for width in (2048, 4096, 8192):
        for tokens in (1, 8, 32, 128, 512, 2048, 8192):
            yield from (Shape(AllReduce(num_tokens=tokens, hidden_size=width, pattern=one)) for one in CODES)
