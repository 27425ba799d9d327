"""vllm_decode: vLLM's benchmark of TRT-LLM decode attention against the FlashInfer wrapper, as cases of this suite."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import Device, devices
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.attention import _reference, _requests, _shared
from pytest_flashinfer_perf.routines.attention._requests import unquantised, whole_groups
from pytest_flashinfer_perf.routines.attention.decode import NATIVE, WRAPPER, native_kernels
from pytest_flashinfer_perf.spec import Built, Cost, Fault, LaunchOptions, Params, Routine, Shape, Tolerance, flag
from pytest_flashinfer_perf.spec.dtypes import FP8, HALF, TORCH, bytes_of, is_fp8

TYPES = (*HALF, FP8[0])
POOL_TOKENS = 256_000  # vLLM's cache, whatever the batch: requests that need more share its blocks
NVFP4 = "nvfp4"
O_SF_SCALE = 500.0  # as in vLLM's benchmark: scales are in units of its reciprocal


@dataclass(frozen=True)
class VllmDecode(Params):
    """One query token per request; lengths drawn up to `max_seq_len`, the last request's is that."""

    batch_size: int = flag("requests", letter="b", minimum=1, draw=(1, 2, 5), most=64)
    max_seq_len: int = flag(
        "longest KV sequence", letter="s", minimum=1, draw=(1, 15, 16, 17, 64, 130), most=8192, tiles=(16, 64, 128)
    )
    num_qo_heads: int = flag("query heads", default=64, letter="h", minimum=1, draw=(4, 8))
    num_kv_heads: int = flag("key and value heads", default=8, letter="kv", minimum=1, draw=(1, 2, 4))
    head_size: int = flag("head size", default=128, letter="d", minimum=1, draw=(64, 128))
    block_size: int = flag("tokens per KV block", default=16, letter="p", minimum=1, draw=(8, 16, 64))
    kv_layout: str = flag("order of heads and tokens in a block", default="HND", choices=("HND", "NHD"))
    q_dtype: str = flag("type of the queries", default="bfloat16", letter="q", choices=TYPES)
    kv_dtype: str = flag("type of keys and values", default="bfloat16", letter="kv", choices=TYPES)
    out_dtype: str = flag("type of the output", default="bfloat16", letter="o", choices=(*TYPES, NVFP4))

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_size)

    @property
    def blocks(self) -> int:
        """The blocks of the cache: one for each that a request may need, or as many as vLLM's cache has."""
        of_one = _shared.pages_per_request(self.max_seq_len, self.block_size)
        return min(self.batch_size * of_one, max(of_one, POOL_TOKENS // self.block_size))

    @property
    def unquantised(self) -> bool:
        return len({self.q_dtype, self.kv_dtype, self.out_dtype}) == 1 and self.q_dtype in HALF

    def faults(self) -> Iterator[Fault]:
        yield from whole_groups(self.num_qo_heads, self.num_kv_heads)


class VllmDecodeInputs(NamedTuple):
    q: Tensor  # [batch, qo heads, dim]
    kv: Tensor  # [blocks, 2, ...] in the layout asked for
    table: _shared.PageTable
    seq_lens: Tensor
    q_scale: float
    kv_scale: float
    o_scale: float
    out: Tensor
    out_scales: Tensor | None  # of an nvfp4 output's blocks


def to_float8(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Quantise to a tenth of the type's range, as vLLM's benchmark does; returns values and scale."""
    info = torch.finfo(dtype)
    low, high = x.aminmax()
    scale = info.max / torch.maximum(low.abs(), high.abs()).clamp(min=1e-12) * 0.1
    return (x * scale).clamp(min=info.min, max=info.max).to(dtype), scale.float().reciprocal()


def inputs(p: VllmDecode, rand: torch.Generator, device: torch.device) -> VllmDecodeInputs:
    lens = torch.randint(1, p.max_seq_len + 1, (p.batch_size,), dtype=torch.int32, device=device, generator=rand)
    lens[-1] = p.max_seq_len
    tokens = (p.num_kv_heads, p.block_size) if p.kv_layout == "HND" else (p.block_size, p.num_kv_heads)
    q, q_scale = _drawn((p.batch_size, p.num_qo_heads, p.head_size), p.q_dtype, rand)
    kv, kv_scale = _drawn((p.blocks, 2, *tokens, p.head_size), p.kv_dtype, rand)
    out, out_scales = _empty(q, p.out_dtype)
    table = _shared.page_table(lens, p.max_seq_len, p.block_size, rand, p.blocks)
    x = VllmDecodeInputs(q, kv, table, lens, q_scale, kv_scale, 1.0, out, out_scales)
    return x._replace(o_scale=to_float8(_attention(p, x))[1].item()) if is_fp8(p.out_dtype) else x


def _drawn(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> tuple[Tensor, float]:
    drawn = unquantised(shape, dtype, rand)
    if not is_fp8(dtype):
        return drawn, 1.0
    values, scale = to_float8(drawn)
    return values, scale.item()


def _empty(q: Tensor, dtype: str) -> tuple[Tensor, Tensor | None]:
    """The output for queries [batch, heads, dim]: of nvfp4 two values to a byte, and the swizzled scales of blocks."""
    if dtype != NVFP4:
        return torch.empty(q.shape, dtype=TORCH[dtype], device=q.device), None
    batch, heads, dim = q.shape
    packed = torch.empty(batch, heads, dim // 2, dtype=torch.uint8, device=q.device)
    padded = _narrow.padded_128x4(batch, heads * dim // _narrow.NV_BLOCK)
    return packed, torch.empty(padded, dtype=torch.float8_e4m3fn, device=q.device)


def _sides(p: VllmDecode, kv: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, heads before tokens in each block."""
    heads_first = kv if p.kv_layout == "HND" else kv.transpose(2, 3)
    return heads_first[:, 0], heads_first[:, 1]


def _scale(p: VllmDecode, x: VllmDecodeInputs) -> float:
    return x.q_scale * x.kv_scale * p.scale


def _attention(p: VllmDecode, x: VllmDecodeInputs, rows: Tensor | None = None) -> Tensor:
    requests = _reference.paged(1, *_sides(p, x.kv), x.table.block_tables, x.seq_lens)
    answers = _reference.answers(x.q, requests, scale=_scale(p, x), causal=False, rows=rows)
    return _reference.joined(answers, x.kv_scale, lse=False)[0]


def reference(p: VllmDecode, x: VllmDecodeInputs, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    return (_attention(p, x, rows) / x.o_scale,)


def decoded(p: VllmDecode, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Decode an nvfp4 output and the scales of its blocks into one tensor."""
    if p.out_dtype != NVFP4:
        return outputs
    packed, swizzled = outputs
    batch, heads, half = packed.shape
    scales = _narrow.linear_128x4(swizzled, batch, heads * half * 2 // _narrow.NV_BLOCK)
    rows = _narrow.Blocked(packed.flatten(1), scales, _narrow.NV_BLOCK, 1.0 / O_SF_SCALE)
    return (rows.dequantised().view(batch, heads, half * 2),)


# Between 4 and 6 an e2m1 value is off by up to 1: a fifth of itself; a small one by a share of its block's largest.
# A block's scale that was rounded down saturates its largest value, which over few blocks resembles a common factor.
OF_NVFP4 = Tolerance(rtol=2e-1, atol=4e-1, scale=4e-2)


def tolerances(p: VllmDecode, backend: str) -> tuple[Tolerance, ...]:
    if p.out_dtype == NVFP4:
        return (OF_NVFP4,)
    fp8_inside = is_fp8(p.q_dtype) or (backend == "trtllm" and is_fp8(p.kv_dtype))
    return (_shared.of_output(p.out_dtype, fp8_inside=fp8_inside),)


def cost(p: VllmDecode, x: VllmDecodeInputs) -> Cost:
    """Queries, outputs with their scales, and the keys and values of each request's actual tokens; the page table. Of
    blocks that requests share the L2 has as large a part as of the cache.
    """
    tokens = int(x.seq_lens.sum())
    shared = x.table.block_tables.numel() > p.blocks
    in_l2 = min(1.0, devices.device_of(x.q).cache_bytes / x.kv.nbytes) if shared else 0.0
    kv = round(2 * tokens * p.num_kv_heads * p.head_size * bytes_of(p.kv_dtype) * (1 - in_l2))
    scales = x.out.numel() // 8 if x.out_scales is not None else 0
    around = (x.q, x.out, x.table.indices, x.table.indptr, x.seq_lens)
    fp8 = is_fp8(p.q_dtype) and is_fp8(p.kv_dtype)
    return Cost(
        flops=4 * tokens * p.num_qo_heads * p.head_size,
        bytes=kv + scales + sum(t.nbytes for t in around),
        dtype=p.q_dtype if fp8 else HALF[0],
    )


def footprint(p: VllmDecode) -> int:
    """The cache, and twice itself in 16 bits while it is quantised; a request's tokens in fp32; the page table, and
    what it is drawn from; queries, outputs, comparisons; the workspace.
    """
    per_token = 2 * p.num_kv_heads * p.head_size
    cache = p.blocks * p.block_size * per_token * (6 if is_fp8(p.kv_dtype) else bytes_of(p.kv_dtype))
    of_one = 8 * p.max_seq_len * per_token
    table = 16 * p.batch_size * p.blocks
    return cache + of_one + table + _shared.rows_bytes(p.batch_size * p.num_qo_heads, p.head_size, p.head_size)


vllm_decode = Routine(
    "vllm_decode",
    family="attention",
    params=VllmDecode,
    inputs=inputs,
    outputs=lambda x: _shared.written(x.out, x.out_scales),
    reference=reference,
    cost=cost,
    tolerances=tolerances,
    decoded=decoded,
    footprint=footprint,
    cuda_graph=True,
    facts=lambda _p, x: {"avg_actual_seq_len": _requests.average(x.seq_lens)},
    rows=lambda _p, x: _reference.ends(1, x.seq_lens),
    activations=lambda x: x.q,
)


def _trtllm_limits(p: VllmDecode, _backend: str, device: Device) -> Iterator[str]:
    if native_kernels(device) == "xqa":
        if p.out_dtype == NVFP4:
            yield "trtllm writes nvfp4 on compute capability 10.x only: set out_dtype to bfloat16"
        if is_fp8(p.q_dtype):
            yield "trtllm is xqa here, which needs bfloat16 or float16 queries"
    if p.block_size not in _shared.PAGES:
        yield f"trtllm has blocks of {_shared.PAGES_LISTED} tokens, not {p.block_size}"


def _unquantised_only(p: VllmDecode, backend: str, _device: Device) -> Iterator[str]:
    if not p.unquantised:
        yield f"{backend} is measured unquantised, whatever it is compared with"


@vllm_decode.backend("trtllm", runs_as="trtllm-native", api=NATIVE, limits=_trtllm_limits)
def _trtllm(p: VllmDecode, x: VllmDecodeInputs, _options: LaunchOptions) -> Built[VllmDecodeInputs]:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache
    from flashinfer.utils import FP4Tensor

    workspace = _shared.workspace(x.q.device)
    counters = _shared.counters(trtllm_batch_decode_with_kv_cache, p.batch_size, x.q)

    def launch(x: VllmDecodeInputs) -> object:
        return trtllm_batch_decode_with_kv_cache(
            query=x.q,
            kv_cache=x.kv,
            workspace_buffer=workspace,
            block_tables=x.table.block_tables,
            seq_lens=x.seq_lens,
            max_seq_len=p.max_seq_len,
            bmm1_scale=_scale(p, x),
            bmm2_scale=x.kv_scale / x.o_scale,
            o_sf_scale=O_SF_SCALE if p.out_dtype == NVFP4 else None,
            kv_layout=p.kv_layout,
            out=x.out if x.out_scales is None else FP4Tensor(x.out, x.out_scales),
            **counters,
        )

    return Built(launch, native_kernels(devices.device_of(x.q)))


@vllm_decode.backend("baseline", runs_as="fa2_tc", api=WRAPPER, limits=_unquantised_only)
def _baseline(p: VllmDecode, x: VllmDecodeInputs, options: LaunchOptions) -> Built[VllmDecodeInputs]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    table = x.table.copy()
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        _shared.workspace(x.q.device),
        p.kv_layout,
        use_cuda_graph=options.cuda_graph,
        use_tensor_cores=p.num_qo_heads // p.num_kv_heads > 4,  # as vLLM chooses
        paged_kv_indptr_buffer=table.indptr,
        paged_kv_indices_buffer=table.indices,
        paged_kv_last_page_len_buffer=table.last_page_len,
    )
    heads = (p.num_qo_heads, p.num_kv_heads, p.head_size, p.block_size)
    plan = _shared.planned(wrapper, *table.csr, *heads, q_data_type=TORCH[p.q_dtype], kv_data_type=TORCH[p.kv_dtype])
    return Built(lambda x: wrapper.run(x.q, x.kv, out=x.out), _shared.resolved(wrapper), plan=plan)


@vllm_decode.backend("torch")
def _torch(p: VllmDecode, _x: VllmDecodeInputs, _options: LaunchOptions) -> Built[VllmDecodeInputs]:
    half = torch.bfloat16 if is_fp8(p.q_dtype) else TORCH[p.q_dtype]

    def launch(x: VllmDecodeInputs) -> object:
        gathered = _shared.gathered(*_sides(p, x.kv), x.table.block_tables, half)
        out = _shared.folded_sdpa(x.q[:, None], gathered, x.seq_lens[:, None], _scale(p, x))
        scaled = out[:, 0] * (x.kv_scale / x.o_scale)
        if x.out_scales is None:
            x.out.copy_(scaled)
        else:
            quantised = _narrow.nvfp4(scaled.flatten(1), O_SF_SCALE)
            x.out.copy_(quantised.values.view(x.out.shape))
            x.out_scales.copy_(_narrow.swizzled_128x4(quantised.scales))
        return x.out

    return Built(launch, "sdpa")


MODES: tuple[dict[str, str], ...] = (
    {},
    {"kv_dtype": FP8[0]},
    {"q_dtype": FP8[0], "kv_dtype": FP8[0]},
    {"q_dtype": FP8[0], "kv_dtype": FP8[0], "out_dtype": FP8[0]},
    {"q_dtype": FP8[0], "kv_dtype": FP8[0], "out_dtype": NVFP4},
)


def _modes(of: VllmDecode, also: tuple[str, ...] = ()) -> Iterator[Shape[VllmDecode]]:
    """The baseline is measured once per shape, unquantised, and each mode is compared with it."""
    for mode in MODES:
        yield Shape(replace(of, **mode), backends=("trtllm", *also, *(() if mode else ("baseline",))))  # type: ignore[arg-type]


@vllm_decode.tier("smoke")
def _smoke() -> Iterator[Shape[VllmDecode]]:
    small = VllmDecode(batch_size=3, max_seq_len=100, num_qo_heads=8, num_kv_heads=1)
    yield from _modes(small, ("torch",))
    yield from _modes(replace(small, kv_layout="NHD"), ("torch",))


@vllm_decode.tier("default")
def _default() -> Iterator[Shape[VllmDecode]]:
    """The sweep that the benchmark does."""
    for batch in (1, 4, 8, 16, 32, 64, 128, 256):
        for longest in (1024 << i for i in range(8)):
            yield from _modes(VllmDecode(batch_size=batch, max_seq_len=longest))


@vllm_decode.tier("full")
def _full() -> Iterator[Shape[VllmDecode]]:
    """The same in both layouts."""
    for layout in ("HND", "NHD"):
        for shape in _default():
            yield replace(shape, params=replace(shape.params, kv_layout=layout))
