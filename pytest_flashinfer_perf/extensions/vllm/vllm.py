"""`benchmark_decode`, for programs written against vLLM's TRT-LLM decode benchmark: change the import line."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from pytest_flashinfer_perf.api import Checking, Measuring, Row, devices, one_case, options
from pytest_flashinfer_perf.extensions.vllm.table import Compared
from pytest_flashinfer_perf.extensions.vllm.vllm_decode import NVFP4, VllmDecode, to_float8, vllm_decode
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions, Shape

__all__ = ["FP4_DTYPE", "FP8_DTYPE", "benchmark_decode", "to_float8"]

FP8_DTYPE = torch.float8_e4m3fn
FP4_DTYPE = torch.uint8

UNMEASURED: dict[str, Any] = {"median": math.nan, "mean": math.nan, "stddev": math.nan, "iqr": math.nan, "rounds": 0}
NAMES = {**{dtype: name for name, dtype in TORCH.items()}, FP4_DTYPE: NVFP4}


def benchmark_decode(  # noqa: PLR0913, PLR0917 - the signature is vLLM's
    dtype: torch.dtype,
    quant_dtypes: tuple[torch.dtype | None, torch.dtype | None, torch.dtype | None],
    batch_size: int,
    max_seq_len: int,
    num_heads: tuple[int, int] = (64, 8),
    head_size: int = 128,
    kv_layout: str = "HND",
    block_size: int = 16,
    warmup: int = 10,
    trials: int = 20,
) -> dict[str, Any]:
    """Measure TRT-LLM's decode and the unquantised baseline; raises with the reason if the baseline cannot run here.

    Where TRT-LLM alone cannot, as with blocks of 8 tokens, the reason is a warning and its times are NaN. The answers
    are checked and the L2 is cold. With CUPTI the times are those of the kernels alone, which are shorter than those of
    CUDA events around a call. `torch.cuda.max_memory_allocated` is afterwards that of one plain call of each.
    """
    named = zip(("q_dtype", "kv_dtype", "out_dtype"), (NAMES[t or dtype] for t in quant_dtypes), strict=True)
    types: dict[str, Any] = dict(named)
    plain: dict[str, Any] = dict.fromkeys(types, NAMES[dtype])
    shape: dict[str, Any] = {
        "batch_size": batch_size,
        "max_seq_len": max_seq_len,
        "num_qo_heads": num_heads[0],
        "num_kv_heads": num_heads[1],
        "head_size": head_size,
        "kv_layout": kv_layout,
        "block_size": block_size,
    }
    measuring = Measuring(iters=trials, warmup=warmup)
    calls = {"baseline": VllmDecode(**shape, **plain), "trtllm": VllmDecode(**shape, **types)}
    baseline = _measured(calls["baseline"], "baseline", measuring)
    try:
        trtllm = _measured(calls["trtllm"], "trtllm", measuring)
    except CannotRunError as reason:
        warnings.warn(f"benchmark_decode: {reason}", stacklevel=2)
        trtllm = replace(baseline, params=calls.pop("trtllm").as_dict(), stats=replace(baseline.stats, **UNMEASURED))
    _need_only_what_is_called(calls)
    return Compared(trtllm, baseline).columns()


def _need_only_what_is_called(calls: Mapping[str, VllmDecode]) -> None:
    """Make torch's peak that of a plain call of each: measuring needs more, copies at other places and the checks."""
    device = devices.find("auto")
    device.give_back_memory()
    torch.cuda.reset_peak_memory_stats(device.torch)
    for backend, p in calls.items():
        x = vllm_decode.inputs(p, torch.Generator(device.torch).manual_seed(options.DEFAULT_SEED), device.torch)
        vllm_decode.backends[backend].build(p, x, LaunchOptions(backend, cuda_graph=False)).launch(x)
        device.synchronize()


def _measured(params: VllmDecode, backend: str, measuring: Measuring) -> Row:
    case = Case(vllm_decode, Shape(params), backend)
    result = one_case.run_case(case, measuring, Checking(), devices.find("auto"))
    stats = result.measurement.stats
    return Row(name=case.id, fullname=case.id, identity=case.identity, params=case.json_params, stats=stats)
