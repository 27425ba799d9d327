"""FlashInfer's own torch references (its trace templates), called with the arguments that our backends pass.

Each inside the domain where it is right: several take no account of ragged lengths, of masks or of grouped heads.
"""

import inspect
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import create_autospec

import pytest
import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.routines.attention.mla import mla
from pytest_flashinfer_perf.routines.attention.prefill_paged import paged_prefill
from pytest_flashinfer_perf.routines.attention.prefill_ragged import ragged_prefill
from pytest_flashinfer_perf.spec.routine import LaunchOptions, Routine

templates = pytest.importorskip("flashinfer.trace.templates.attention", exc_type=ImportError)
products = pytest.importorskip("flashinfer.trace.templates.gemm", exc_type=ImportError)
pages = pytest.importorskip("flashinfer.trace.templates.page", exc_type=ImportError)

DECODE = replace(next(iter(decode.tiers["smoke"]())).params, s_kv=64)
PAGED = replace(next(iter(paged_prefill.tiers["smoke"]())).params, s_qo=32, s_kv=64, causal=True)
RAGGED = replace(next(iter(ragged_prefill.tiers["smoke"]())).params, s_qo=40, s_kv=40, causal=True)
MLA = replace(next(iter(mla.tiers["smoke"]())).params, s_kv=96)
MANY = {"num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}


def made(routine, p):
    return routine.inputs(p, torch.Generator().manual_seed(7), torch.device("cpu"))


def agrees(routine: Routine[Any, Any], p: Any, x: Any, theirs: Any) -> None:
    out = theirs[0] if isinstance(theirs, tuple) else theirs["output"] if isinstance(theirs, dict) else theirs
    ours, (tolerance, *_) = routine.reference(p, x)[0], routine.tolerances(p, "torch")
    assert check.compare(out.reshape(ours.shape), ours, tolerance).rule == ""


class Native(NamedTuple):
    routine: Routine[Any, Any]
    backend: str
    params: Any
    home: Any
    template: str


NATIVE = [
    Native(decode, "cudnn", replace(DECODE, random_actual_seq_len=True), templates, "cudnn_batch_decode_trace"),
    Native(
        decode, "trtllm-native", replace(DECODE, random_actual_seq_len=True), templates, "trtllm_batch_decode_trace"
    ),
    Native(paged_prefill, "cudnn-native", PAGED, templates, "cudnn_batch_prefill_trace"),
    Native(paged_prefill, "trtllm-native", PAGED, templates, "trtllm_batch_context_trace"),
    Native(
        ragged_prefill,
        "trtllm-native",
        replace(RAGGED, causal=False, **MANY),
        products,
        "trtllm_ragged_attention_deepseek_trace",
    ),
    Native(ragged_prefill, "trtllm-fmha-v2", replace(RAGGED, **MANY), pages, "trtllm_fmha_v2_prefill_trace"),
    Native(mla, "trtllm-native", MLA, templates, "trtllm_batch_decode_mla_dense_trace"),
]


@pytest.mark.parametrize("native", NATIVE, ids=lambda n: f"{n.routine.name}-{n.backend}")
def test_a_native_apis_template_agrees_on_the_arguments_we_pass(native, monkeypatch):
    template = getattr(native.home, native.template)
    x = made(native.routine, native.params)
    arguments = passed(native, x, monkeypatch)
    for name in ("actual_seq_lens_q", "actual_seq_lens_kv"):  # [B, 1, 1, 1] for the kernel; the template reads [B]
        if name in arguments:
            arguments[name] = arguments[name].flatten()
    agrees(native.routine, native.params, x, template.reference(**arguments))


def passed(native, x, monkeypatch):
    """What the backend's launch calls its API with, by name."""
    backend = native.routine.backends[native.backend]
    path, _, name = f"flashinfer.{backend.api}".rpartition(".")
    real = getattr(__import__(path, fromlist=[name]), name)
    api = create_autospec(real)
    monkeypatch.setattr(f"{path}.{name}", api)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)
    backend.build(native.params, x, LaunchOptions(native.backend, cuda_graph=True)).launch(x)
    call = api.call_args
    return dict(inspect.signature(real).bind(*call.args, **call.kwargs).arguments)


def tokens_first(side):
    """The templates of the wrappers read pages in NHD order."""
    return side.transpose(1, 2)


def test_the_decode_wrappers_template_agrees():
    x = made(decode, DECODE)
    table = (x.table.indptr, x.table.indices)
    theirs = templates.gqa_paged_decode_trace.reference(
        x.q, tokens_first(x.kv.k), tokens_first(x.kv.v), *table, DECODE.scale
    )
    agrees(decode, DECODE, x, theirs)


def test_the_paged_prefill_wrappers_template_agrees():
    x = made(paged_prefill, PAGED)
    table = (x.lens.q_indptr, x.table.indptr, x.table.indices)
    theirs = templates.gqa_paged_prefill_trace.reference(x.q, tokens_first(x.k), tokens_first(x.v), *table, PAGED.scale)
    agrees(paged_prefill, PAGED, x, theirs)


def test_the_ragged_prefill_wrappers_template_agrees():
    x = made(ragged_prefill, RAGGED)
    theirs = templates.gqa_ragged_prefill_trace.reference(
        x.q, x.k, x.v, x.lens.q_indptr, x.lens.kv_indptr, RAGGED.scale
    )
    agrees(ragged_prefill, RAGGED, x, theirs)


def test_the_mla_wrappers_template_agrees():
    x = made(mla, MLA)
    parts = [t for packed in (x.q, x.kv) for t in packed.split((MLA.head_dim_ckv, MLA.head_dim_kpe), -1)]
    theirs = templates.mla_paged_decode_trace.reference(*parts, x.table.indptr, x.table.indices, MLA.scale)
    agrees(mla, MLA, x, theirs)
