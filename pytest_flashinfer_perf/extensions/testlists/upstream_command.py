"""The command of `flashinfer_benchmark.py` that measures the same case, if it has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_flashinfer_perf.extensions.testlists import upstream
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.dtypes import is_fp8
from pytest_flashinfer_perf.spec.params import fields_of

PROGRAM = ("python3", upstream.SCRIPT)
# Required by its parser and passed to no kernel: the latents of MLA are one head that all queries share. And what is
# the default here, as its README describes the routine, but not in its parser.
REQUIRED = {"BatchMLAPagedAttentionWrapper": ["--num_kv_heads", "1"], "mm_fp4": ["--use_nvfp4"]}


def command(case: Case) -> str | None:
    if refusal(case):
        return None
    name, own = case.routine.name, case.routine.family in upstream.DEFAULT_BACKEND
    backends = ["--backends", case.backend_name] if own else []
    return flags.join([*PROGRAM, "--routine", name, *backends, *case.words_beside, *REQUIRED.get(name, [])])


def refusal(case: Case) -> str:
    """Why upstream's script cannot run it; nothing where it can."""
    name, backend = case.routine.name, case.backend_name
    if name in upstream.COMMUNICATION:
        return f"{upstream.SCRIPT} runs {name} under mpirun"
    if name not in upstream.RUNS:
        return f"{upstream.SCRIPT} has no routine {name}"
    if backend not in upstream.RUNS[name]:
        return f"{upstream.SCRIPT} does not run {name} by {backend}"
    for field in fields_of(type(case.params)):
        value = getattr(case.params, field.name)
        if field.name in upstream.FLAGS_HERE_ONLY and value != field.default:
            return f"{upstream.SCRIPT} has no flag --{field.name}"
        if value in upstream.VALUES_HERE_ONLY.get(field.name, ()):
            return f"{upstream.SCRIPT} does not take --{field.name} {value}"
    return "" if runs(name, backend, case.params) else f"{upstream.SCRIPT} skips {backend} for it"


# The shapes that `flashinfer_benchmark.py` itself leaves out, by backend.

PAGES = (16, 32, 64, 128)
BLOCKED_PAGES = (32, 64)
AUTOTUNED = {
    "bmm_bf16": ("cudnn", "cutlass", "auto"),
    "bmm_fp8": ("cutlass", "cute-dsl", "cudnn", "cublas", "auto"),
    "mm_bf16": ("cudnn", "cutlass", "tgv", "cublaslt", "tinygemm", "cute-dsl", "auto"),
    "mm_fp4": ("cudnn", "cutlass", "trtllm", "cute-dsl", "b12x", "auto"),
}


def runs(routine: str, backend: str, params: Any) -> bool:
    if getattr(params, "autotune", False) and backend not in AUTOTUNED.get(routine, (backend,)):
        return False
    return routine not in LIMITS or LIMITS[routine](params, backend)


def _fp8(params: Any) -> bool:
    return is_fp8(params.q_dtype) or is_fp8(params.kv_dtype)


def _decode(p: Any, backend: str) -> bool:
    if p.s_qo > 1 and p.causal and p.spec_dec_mask == "full":
        return False  # upstream takes the mask alone
    if backend == "prims-ts":
        types = p.out in ("fp8_e4m3", "float16") if is_fp8(p.q_dtype) else p.out == p.q_dtype
        sizes = p.head_dim_qk in (64, 128, 256) and p.page_size in PAGES and p.group <= 32
        return bool(p.q_dtype == p.kv_dtype and types and sizes)
    one_token: dict[str, bool] = {
        "fa2": p.group != 5,
        "fa2_tc": not is_fp8(p.q_dtype) and not is_fp8(p.out),
        "cudnn": p.out == "bfloat16" and not _fp8(p),
        "auto": not is_fp8(p.out),
    }
    return backend not in one_token or (p.s_qo == 1 and one_token[backend])


def _paged_prefill(p: Any, backend: str) -> bool:
    allowed: dict[str, bool] = {
        "fa2": not is_fp8(p.q_dtype),
        "trtllm-gen": p.causal,
        "trtllm-native": p.causal,
        "prims-ts": p.q_dtype == p.kv_dtype and p.head_dim_qk in (128, 256) and p.page_size in PAGES,
    }
    return allowed.get(backend, True)


def _ragged_prefill(p: Any, backend: str) -> bool:
    sizes = (p.head_dim_qk, p.head_dim_out)
    packed = p.s_qo == p.s_kv and p.head_dim_qk == p.head_dim_out
    allowed: dict[str, bool] = {
        "fa2": not is_fp8(p.q_dtype),
        "cudnn": not _fp8(p),
        "cudnn-native": not _fp8(p),
        "cutlass": not _fp8(p) and (sizes == (128, 128) or p.head_dim_qk == 192),
        "trtllm-native": sizes in ((192, 128), (128, 128)),
        "trtllm-fmha-v2": packed or not _fp8(p),
        "prims-ts": p.q_dtype == p.kv_dtype and sizes in ((128, 128), (256, 256)),
    }
    return allowed.get(backend, True) and (backend == "prims-ts" or not is_fp8(p.out))


def _mla(p: Any, backend: str) -> bool:
    if "float16" in (p.q_dtype, p.kv_dtype):
        return False
    allowed: dict[str, bool] = {
        "fa2": p.s_qo == 1 and not _fp8(p),
        "fa3": p.s_qo == 1 and not _fp8(p),
        "cutlass": p.s_qo == 1 and not _fp8(p) and p.page_size in BLOCKED_PAGES,
        "trtllm-native": p.page_size in BLOCKED_PAGES,
        "cute-dsl": p.num_qo_heads >= 128,
        "prims-ts": p.q_dtype == p.kv_dtype and (p.head_dim_ckv, p.head_dim_kpe) == (512, 64) and p.page_size in PAGES,
    }
    return allowed.get(backend, True)


def _e4m3(p: Any, _backend: str) -> bool:
    return (p.input_dtype, p.mat2_dtype) == ("fp8_e4m3", "fp8_e4m3")


def _groupwise(p: Any, backend: str) -> bool:
    return _e4m3(p, backend) and (backend != "trtllm" or (p.scale_major_mode == "MN" and p.k >= 256))


LIMITS: dict[str, Callable[[Any, str], bool]] = {
    "BatchDecodeWithPagedKVCacheWrapper": _decode,
    "BatchPrefillWithPagedKVCacheWrapper": _paged_prefill,
    "BatchPrefillWithRaggedKVCacheWrapper": _ragged_prefill,
    "BatchMLAPagedAttentionWrapper": _mla,
    "gemm_fp8_nt_groupwise": _groupwise,
    "group_gemm_fp8_nt_groupwise": _e4m3,
    "mm_fp8": _e4m3,
    "trtllm_fp4_block_scale_moe": lambda p, _backend: p.fp4_mode != "mxfp4_mxfp8" or p.num_tokens % 128 == 0,
    # Upstream reads the flag of the activation and does not pass it on.
    "trtllm_fp8_block_scale_moe": lambda p, _backend: bool(p.activation_type == "Swiglu"),
}
