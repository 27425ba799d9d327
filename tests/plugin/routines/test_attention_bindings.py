"""Every argument that a backend passes binds to the installed FlashInfer, whose own references understand it.

Nothing is launched. The references are its trace templates, each inside the domain where it is right: several take no
account of ragged lengths, of masks or of grouped heads.
"""

import inspect
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.routines import _declared
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.routines.attention.mla import mla
from pytest_flashinfer_perf.routines.attention.prefill_paged import paged_prefill
from pytest_flashinfer_perf.routines.attention.prefill_ragged import ragged_prefill
from pytest_flashinfer_perf.spec.routine import LaunchOptions

ROUTINES = (decode, paged_prefill, ragged_prefill, mla)
CALLED = [pytest.param(r, b, id=f"{r.name}-{b.name}") for r in ROUTINES for b in r.backends.values() if b.api]


def smoke(routine):
    return next(iter(routine.tiers["smoke"]())).params


def made(routine, p):
    return routine.inputs(p, torch.Generator().manual_seed(7), torch.device("cpu"))


def accepted(routine, backend, device):
    """The shapes that this backend's limits let through: the others never reach the library."""
    tier = [shape.params for shape in routine.tiers["smoke"]()]
    wider = {"page_size": 32, "num_qo_heads": 128} if routine is mla else {"head_dim_qk": 128, "head_dim_vo": 128}
    if routine is ragged_prefill:
        wider["s_qo"] = tier[0].s_kv
    more = [replace(p, **wider) for p in tier]
    return [p for p in (*tier, *more) if not list(backend.limits(p, backend.name, device))]


def autospec(path, monkeypatch):
    """The real API's signature, its class's `plan` and `run` with theirs, and nothing behind them."""
    module, _, name = path.rpartition(".")
    real = getattr(pytest.importorskip(module, exc_type=ImportError), name)
    api = create_autospec(real)
    if isinstance(real, type):
        api.plan, api.run = real.plan, real.run
        _state_plan(api.return_value, real)
    monkeypatch.setattr(path, api)
    return api


def _state_plan(wrapper, real):
    wrapper._backend = wrapper.resolved_backend = "fa2"
    wrapper.plan.__signature__, wrapper.plan.__qualname__ = inspect.signature(real.plan), real.plan.__qualname__
    if hasattr(real, "_plan_impl"):
        signature = inspect.signature(real._plan_impl)
        wrapper.plan.side_effect = lambda *args, **kwargs: signature.bind(None, *args, **kwargs) and None


@pytest.mark.parametrize(("routine", "backend"), CALLED)
def test_calls_fit_the_librarys_signatures(routine, backend, hopper, blackwell, monkeypatch):
    api = autospec(f"flashinfer.{backend.api}", monkeypatch)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)  # the mock keeps every one it is given
    shapes = accepted(routine, backend, hopper) or accepted(routine, backend, blackwell)
    for p in shapes:
        x = made(routine, p)
        built = backend.build(p, x, LaunchOptions(backend.name, cuda_graph=True))
        built.launch(x if built.takes is None else built.takes)
        plan = api.return_value.plan
        assert (built.plan is not None) == plan.called, "whatever is planned can be planned again"
        if built.plan is not None:
            built.plan()
            first, again = plan.call_args_list[-2:]
            assert all(one is other for one, other in zip(first.args, again.args, strict=True))
            assert all(first.kwargs[name] is again.kwargs[name] for name in (*first.kwargs, *again.kwargs))
    assert api.call_count == len(shapes) >= 3


def test_mla_auto_is_the_native_apis_on_blackwell(monkeypatch, blackwell):
    native = autospec("flashinfer.mla.trtllm_batch_decode_with_kv_cache_mla", monkeypatch)
    monkeypatch.setattr("pytest_flashinfer_perf.machine.devices.device_of", lambda _tensor: blackwell)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)
    p = replace(smoke(mla), autotune=True, mla_is_var_seq="auto")
    x = made(mla, p)
    built = mla.backends["auto"].build(p, x, LaunchOptions("auto", cuda_graph=True))
    built.launch(x)
    assert built.resolved == "auto"
    assert native.call_count == 1
    assert mla.backends["auto"].tunes
    assert native.call_args.kwargs["is_var_seq"] is False


FP8 = {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bfloat16"}
LIMITS = [
    (paged_prefill, "fa2", FP8, "q_dtype is fp8_e4m3: use fa3"),
    (paged_prefill, "fa3", {"kv_dtype": "fp8_e4m3"}, "both in fp8, or neither: use fa2"),
    (paged_prefill, "fa3", {"head_dim_qk": 96}, "no kernel for heads of 96/96: use fa2"),
    (paged_prefill, "auto", {**FP8, "out_dtype": None}, "no fp8 output: set out_dtype"),
    (paged_prefill, "trtllm-gen", {}, "compute capability 10.x only: use trtllm-fmha-v2"),
    (paged_prefill, "trtllm-native", {}, "compute capability 10.x only: use trtllm-fmha-v2"),
    (paged_prefill, "cudnn", {"kv_dtype": "float16"}, "one type, not bfloat16 and float16: use fa2"),
    (paged_prefill, "trtllm-fmha-v2", {"kv_dtype": "fp8_e4m3"}, "one type, not bfloat16 and fp8_e4m3: use fa2"),
    (paged_prefill, "trtllm-fmha-v2", {"return_lse": True}, "returns no LSE"),
    (paged_prefill, "prims-ts", {"page_size": 7, "head_dim_qk": 128}, "pages of 16, 32, 64 or 128 tokens, not 7"),
    (ragged_prefill, "cutlass", {}, "heads of 128 or 192, not 64/64: use fa2"),
    (ragged_prefill, "trtllm-fmha-v2", {"head_dim_vo": 32}, "keys of 64 and values of 32: use fa3"),
    (ragged_prefill, "trtllm-fmha-v2", {}, "more keys than queries: set s_qo to s_kv"),
    (ragged_prefill, "cute-dsl", {}, "compute capability 10.x only"),
    (mla, "fa2", {"q_dtype": "fp8_e4m3"}, "q_dtype is fp8_e4m3: use trtllm-native"),
    (mla, "fa3", {"kv_dtype": "float16"}, "one type, or an fp8 cache"),
    (mla, "fa3", {"out_dtype": "float16"}, "leave out out_dtype"),
    (mla, "cutlass", {}, "needs 128 query heads, not 16"),
    (mla, "trtllm-native", {}, "10.x only: use fa3 or fa2"),
    (decode, "fa2", {"num_qo_heads": 10}, "no kernel for 5 query heads per KV head: use fa2_tc"),
    (decode, "fa2", {"s_qo": 2}, "one token per request"),
    (decode, "fa2_tc", FP8, "q_dtype is fp8_e4m3: use fa3"),
    (decode, "fa3", {"kv_dtype": "fp8_e4m3"}, "both in fp8, or neither"),
    (decode, "fa3", {"s_qo": 2}, "one token per request"),
    (decode, "auto", {"s_qo": 2, "spec_dec_mask": "full"}, "spec_dec_mask full is not available"),
    (decode, "auto", {"out_dtype": "fp8_e4m3"}, "no fp8 output"),
    (decode, "cudnn", {"kv_dtype": "fp8_e4m3"}, "bfloat16 and float16 only"),
    (decode, "cudnn", {"out_dtype": "float16"}, "of one type"),
    (decode, "trtllm-gen-native", {"page_size": 1}, "16, 32, 64 or 128 tokens, not 1"),  # its name upstream
    (decode, "trtllm-native", {"q_dtype": "fp8_e4m3"}, "xqa here"),
]


@pytest.mark.parametrize(("routine", "backend", "change", "sentence"), LIMITS)
def test_a_limit_is_a_sentence_with_a_way_out(routine, backend, change, sentence, hopper):
    pytest.importorskip("flashinfer")
    p = replace(smoke(routine), **change)
    assert any(sentence in limit for limit in routine.backend_named(backend).limits(p, backend, hopper))


def test_cudnn_prefills_fp8_on_blackwell_from_9_17_1_on(hopper, blackwell, monkeypatch):
    pytest.importorskip("flashinfer")
    p = replace(smoke(paged_prefill), **FP8)
    limits = paged_prefill.backends["cudnn"].limits
    assert "compute capability 10.0 or later: use fa3" in next(iter(limits(p, "cudnn", hopper)))
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91700)
    assert "9.17.1 or later, this is 91700" in next(iter(limits(p, "cudnn", blackwell)))
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91701)
    assert not list(limits(p, "cudnn", blackwell))


def test_fa2_scales_fp8_keys_only_where_the_wrapper_does(hopper):
    flashinfer = pytest.importorskip("flashinfer", exc_type=ImportError)
    p = replace(smoke(ragged_prefill), kv_dtype="fp8_e4m3")
    said = [limit for limit in ragged_prefill.backends["fa2"].limits(p, "fa2", hopper) if "ignores the scales" in limit]
    newer = "lse_base" in inspect.signature(flashinfer.BatchPrefillWithRaggedKVCacheWrapper.run).parameters
    assert bool(said) != newer


DECODE = replace(smoke(decode), s_kv=64)
RAGGED = replace(smoke(ragged_prefill), s_qo=40, s_kv=40, causal=True)
PAGED = replace(smoke(paged_prefill), s_qo=32, s_kv=64, causal=True)
MLA = replace(smoke(mla), s_kv=96)
LENGTHS = {"random_actual_seq_len": True}
MANY = {"num_kv_heads": 8, "head_dim_qk": 128, "head_dim_vo": 128}
NATIVE = [
    (decode, "cudnn", replace(DECODE, **LENGTHS), "attention.cudnn_batch_decode_trace"),
    (decode, "trtllm-native", replace(DECODE, **LENGTHS), "attention.trtllm_batch_decode_trace"),
    (paged_prefill, "cudnn-native", PAGED, "attention.cudnn_batch_prefill_trace"),
    (paged_prefill, "trtllm-native", PAGED, "attention.trtllm_batch_context_trace"),
    (
        ragged_prefill,
        "trtllm-native",
        replace(RAGGED, causal=False, **MANY),
        "gemm.trtllm_ragged_attention_deepseek_trace",
    ),
    (ragged_prefill, "trtllm-fmha-v2", replace(RAGGED, **MANY), "page.trtllm_fmha_v2_prefill_trace"),
    (mla, "trtllm-native", MLA, "attention.trtllm_batch_decode_mla_dense_trace"),
]


def template(path):
    home, name = path.split(".")
    module = pytest.importorskip(f"flashinfer.trace.templates.{home}", exc_type=ImportError)
    return getattr(module, name).reference


def agrees(routine, p, x, theirs):
    out = theirs[0] if isinstance(theirs, tuple) else theirs["output"] if isinstance(theirs, dict) else theirs
    ours, (tolerance, *_) = routine.reference(p, x)[0], routine.tolerances(p, "torch")
    return check.compare(out.reshape(ours.shape), ours, tolerance).rule == ""


@pytest.mark.parametrize(("routine", "name", "p", "path"), NATIVE)
def test_a_native_apis_template_agrees_on_the_arguments_we_pass(routine, name, p, path, monkeypatch):
    backend, x = routine.backends[name], made(routine, p)
    api = autospec(f"flashinfer.{backend.api}", monkeypatch)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)
    backend.build(p, x, LaunchOptions(name, cuda_graph=True)).launch(x)
    arguments = inspect.signature(api).bind(*api.call_args.args, **api.call_args.kwargs).arguments
    for lengths in {"actual_seq_lens_q", "actual_seq_lens_kv"} & arguments.keys():
        arguments[lengths] = arguments[lengths].flatten()  # [B, 1, 1, 1] for the kernel; the template reads [B]
    assert agrees(routine, p, x, template(path)(**arguments))


def test_a_dispatch_macro_says_which_kernels_there_are():
    assert {1, 2, 4, 8} <= _declared.dispatched("DISPATCH_GQA_GROUP_SIZE", "group_size") < set(range(33))
    assert _declared.dispatched("DISPATCH_NOTHING", "x") == frozenset()
