"""Each backend's call against the installed library: its signature, its own references, our decoders, its limits."""

import inspect
import itertools
from dataclasses import replace

import pytest
import torch
from decoding import fp4, in_tiles, unshuffled
from gemms import DENSE, GEMM, smoke

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines import _declared

pytest.importorskip("flashinfer.gemm", exc_type=ImportError)
templates = pytest.importorskip("flashinfer.trace.templates.gemm", exc_type=ImportError)

BACKENDS = [(name, backend) for name, r in GEMM.items() for backend in r.backends if backend != "torch"]
LIBRARYS_NAME = {("group_gemm_fp8_nt_groupwise", "cutlass"): "trtllm"}


@pytest.fixture
def called(on_cpu):
    """What a backend passes to the library's function, by the names of its parameters."""

    def call(routine, p, backend, x):
        passed = on_cpu(routine).passed(p, x, backend)
        passed.apply_defaults()
        return passed.arguments

    return call


def runnable(routine, backend, device):
    return [p for p in smoke(routine) if not list(routine.backends[backend].limits(p, backend, device))]


@pytest.fixture(autouse=True)
def gpu_software(monkeypatch):
    """A GPU, its cuDNN, the DSL: what this machine has not is not what is tested here."""
    monkeypatch.setattr("pytest_flashinfer_perf.machine.devices.Device.is_gpu", True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92300)
    monkeypatch.setattr(capability, "_is_there", lambda _module: True)


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_calls_fit_the_librarys_signature(name, backend, blackwell, on_cpu, called):
    routine = GEMM[name]
    shapes = runnable(routine, backend, blackwell)
    if name == "mm_fp8" and not _declared.listed(routine.backends[backend].api, backend):
        assert not shapes
        return
    for p in shapes:
        x = on_cpu(routine).inputs(p)
        arguments = called(routine, p, backend, x)
        assert arguments["out"] is x.out
        assert arguments.get("backend", backend) == LIBRARYS_NAME.get((name, backend), backend)
        assert arguments.get("out_dtype") in (None, x.out.dtype, torch.bfloat16)
    assert shapes


def librarys_reference(name, backend):
    """That of the API's trace template, which bears the API's name."""
    api = GEMM[name].backends[backend].api.rpartition(".")[2]
    return getattr(getattr(templates, f"{api}_trace", None), "reference", None)


def dense():
    """Each backend that has one, with a bias where it reads one."""
    for name, backend in BACKENDS:
        reference = librarys_reference(name, backend) if name in DENSE else None
        if reference is not None:
            reads_bias = "bias" in inspect.signature(reference).parameters
            yield name, backend, {"bias": True} if reads_bias else {}


TRUSTED = [
    *dense(),
    ("gemm_fp8_nt_groupwise", "cutlass", {"scale_major_mode": "K"}),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {}),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {"scale_major_mode": "K"}),
    ("bmm_fp8", "cublas", {"batch_size": 3}),
    ("bmm_fp8", "cudnn", {"batch_size": 3, "mat2_dtype": "fp8_e5m2"}),
]


@pytest.mark.parametrize(("name", "backend", "flags"), TRUSTED)
def test_the_librarys_own_reference_agrees_on_the_arguments_we_pass(name, backend, flags, on_cpu, called):
    routine = GEMM[name]
    p = replace(smoke(routine)[0], m=40, k=384, **flags)
    x = on_cpu(routine).inputs(p)
    arguments = called(routine, p, backend, x)
    reference = librarys_reference(name, backend)
    told = {name.lower(): value for name, value in arguments.items()}  # one of them calls a and b A and B
    wanted = [name for name in inspect.signature(reference).parameters if name.lower() in told]
    theirs = reference(**{name: told[name.lower()] for name in wanted})
    assert on_cpu(routine).rule(p, x.out if theirs is None else theirs, x) == ""  # some write it


@pytest.mark.parametrize("backend", [backend for backend in GEMM["mm_fp4"].backends if backend != "torch"])
def test_mm_fp4_is_passed_what_its_kernels_read_as_the_reference(backend, blackwell, on_cpu, called):
    """Decoded from the call's arguments, tile by tile and byte by byte."""
    routine = GEMM["mm_fp4"]
    shapes = runnable(routine, backend, blackwell)
    for p in shapes:
        x = on_cpu(routine).inputs(p)
        told = called(routine, p, backend, x)
        rows = 8 if told["use_8x4_sf_layout"] else 128
        b, scales = told["b"].T, in_tiles(told["b_descale"].T.contiguous(), p.n, p.k // p.block)
        if backend == "trtllm":
            b, scales = unshuffled(b), unshuffled(scales)
        a = fp4(told["a"], in_tiles(told["a_descale"], p.m, p.k // p.block, rows), told["block_size"])
        alpha = 1.0 if told["alpha"] is None else told["alpha"].double()[:, None]
        theirs = (a @ fp4(b, scales, told["block_size"]).T * alpha).float()
        assert torch.allclose(theirs, routine.reference(p, x)[0], rtol=1e-4, atol=1e-4)
        assert told["use_nvfp4"] == p.use_nvfp4
    assert shapes


def test_prepared_weights_of_mm_fp8_are_the_librarys(on_cpu, called, blackwell):
    routine = GEMM["mm_fp8"]
    p = routine.params(m=4, n=256, k=384)
    assert not list(routine.backends["trtllm_low_latency"].limits(p, "trtllm_low_latency", blackwell))
    x = on_cpu(routine).inputs(p)
    theirs = capability.api("prepare_low_latency_gemm_weights")(x.b.view(torch.uint8), {})
    assert torch.equal(called(routine, p, "trtllm_low_latency", x)["b"].view(torch.uint8), theirs)


@pytest.mark.parametrize(("name", "flags"), [("grouped_mm_bf16", {}), ("grouped_mm_fp8", {"mat2_dtype": "fp8_e5m2"})])
def test_grouped_products_are_passed_what_means_the_reference(name, flags, on_cpu, called):
    routine = GEMM[name]
    p = routine.params(group_size=4, m=24, n=208, k=256, ragged=True, **flags)
    x = on_cpu(routine).inputs(p)
    told = called(routine, p, "cudnn", x)
    out = torch.zeros(x.out.shape)
    for group, (start, end) in enumerate(itertools.pairwise(told["m_indptr"].tolist())):
        for row in range(start, end):
            out[row] = told["b"][group].float() @ told["a"][row].float() * told.get("alpha", 1.0)
    assert torch.allclose(out, routine.reference(p, x)[0], rtol=1e-4, atol=1e-4)
    assert told["m_indptr"].dtype == torch.int32


@pytest.mark.parametrize("mode", ["MN", "K"])
def test_grouped_fp8_is_passed_what_means_the_reference(mode, on_cpu, called):
    """Row by row, 128 columns at a time, each scale looked up where the mode says that it lies."""
    routine = GEMM["group_gemm_fp8_nt_groupwise"]
    p = routine.params(group_size=3, m=8, n=136, k=256, ragged=True, scale_major_mode=mode)
    x = on_cpu(routine).inputs(p)
    told = called(routine, p, "cutlass", x)
    of = (
        (lambda scales, row, tile: scales[tile, row]) if mode == "MN" else (lambda scales, row, tile: scales[row, tile])
    )
    out = torch.zeros(x.out.shape)
    for group, (start, end) in enumerate(itertools.pairwise(told["m_indptr"].tolist())):
        for row, column, tile in itertools.product(range(start, end), range(p.n), range(2)):
            part = slice(128 * tile, 128 * tile + 128)
            scale = of(told["a_scale"], row, tile) * of(told["b_scale"][group], column // 128, tile)
            out[row, column] += told["a"][row, part].float() @ told["b"][group, column, part].float() * scale
    assert torch.allclose(out, routine.reference(p, x)[0], rtol=1e-4, atol=1e-4)
    assert told["scale_major_mode"] == mode


def test_blockscale_scales_lie_as_hopper_reads_them(on_cpu, called):
    """By columns, each of them padded to a multiple of 4 rows; the weights' by rows."""
    routine = GEMM["gemm_fp8_nt_groupwise"]
    p = routine.params(m=41, n=192, k=384)
    x = on_cpu(routine).inputs(p)
    told = called(routine, p, "fp8_blockscale_gemm_sm90", x)
    assert told["input_scale"].shape == (41, 3)
    assert told["input_scale"].stride() == (1, 44)
    assert told["weight_scale"].shape == (2, 3)
    assert told["weight_scale"].is_contiguous()


LIMITS = [
    ("gemm_fp8_nt_groupwise", "cutlass", {"m": 1}, "m in multiples of 4, not 1"),
    ("gemm_fp8_nt_groupwise", "cutile", {}, "set scale_major_mode to K"),
    ("gemm_fp8_nt_groupwise", "trtllm", {"scale_major_mode": "K"}, "set scale_major_mode to MN"),
    ("gemm_fp8_nt_groupwise", "trtllm", {"k": 128}, "k of at least 256, not 128"),
    ("gemm_fp8_nt_groupwise", "trtllm", {"out_dtype": "float16"}, "writes bfloat16 only"),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {"n": 200}, "n in multiples of 64, not 200"),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {"out_dtype": "float16"}, "writes bfloat16, whatever"),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {"input_dtype": "fp8_e5m2"}, "multiplies fp8_e4m3 only"),
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90", {"mma_sm": 2}, "leave it 1"),
    ("group_gemm_fp8_nt_groupwise", "cutile", {}, "set scale_major_mode to K"),
    ("group_gemm_fp8_nt_groupwise", "cutlass", {"n": 201}, "n in multiples of 8, not 201"),
    ("bmm_fp8", "cutlass", {"mat2_dtype": "fp8_e5m2"}, "use cublas"),
    ("bmm_fp8", "cublas", {"input_dtype": "fp8_e5m2", "mat2_dtype": "fp8_e5m2"}, "fp8_e5m2 by fp8_e4m3 only"),
    ("bmm_fp8", "cudnn", {"n": 200}, "n and k in multiples of 16, not 200 and 256"),
    ("bmm_fp8", "cute-dsl", {"m": 4}, "m in multiples of 16, not 4"),
    ("bmm_bf16", "tgv", {"out_dtype": "float16"}, "use cudnn"),
    ("bmm_bf16", "cake", {"k": 512}, "a k of 64, 256, 1024, not 256 and 512"),
    ("bmm_bf16", "cutile", {"autotune": True}, "leave it out"),
    ("mm_bf16", "tinygemm", {"out_dtype": "float32"}, "tinygemm writes bfloat16 only"),
    ("mm_bf16", "tinygemm", {"n": 200}, "n in multiples of 16, not 200"),
    ("mm_bf16", "cutlass", {"bias": True}, "adds no bias"),
    ("mm_bf16", "cublaslt", {"enable_pdl": True}, "use tinygemm or tgv"),
    ("mm_fp4", "cudnn", {}, "set use_128x4_sf_layout"),
    ("mm_fp4", "trtllm", {"use_mxfp4": True}, "leave out use_mxfp4"),
    ("mm_fp4", "trtllm", {"n": 200}, "needs an n that is a multiple of 128, not 200"),
    ("mm_fp4", "cutedsl_low_latency", {"use_128x4_sf_layout": True, "m": 9}, "m of at most 8"),
]


@pytest.mark.parametrize(("name", "backend", "flags", "sentence"), LIMITS)
def test_a_limit_is_a_sentence_with_a_way_out(name, backend, flags, sentence, blackwell):
    p = GEMM[name].params(**{"m": 16, "n": 256, "k": 256, **flags})
    assert sentence in " ".join(GEMM[name].backends[backend].limits(p, backend, blackwell))


def test_cudnn_says_which_version_groups_need(monkeypatch, hopper):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    routine = GEMM["grouped_mm_fp8"]
    p = routine.params(m=16, n=256, k=256)
    assert "from 92100 on, this is 91900" in next(iter(routine.backends["cudnn"].limits(p, "cudnn", hopper)))


ON_HOPPER = {
    ("gemm_fp8_nt_groupwise", "cutlass"): False,
    ("gemm_fp8_nt_groupwise", "fp8_blockscale_gemm_sm90"): True,
    ("group_gemm_fp8_nt_groupwise", "cutlass"): False,
    ("bmm_fp8", "cublas"): True,
    ("bmm_fp8", "auto"): True,
    ("mm_fp4", "auto"): False,
    ("mm_bf16", "tinygemm"): True,
    ("grouped_mm_bf16", "cudnn"): True,
}


@pytest.mark.parametrize(("name", "backend"), ON_HOPPER)
def test_where_it_runs_is_what_the_library_says(name, backend, hopper, blackwell):
    unmet = capability.hardware(backend, GEMM[name].backends[backend].api)
    assert (unmet(hopper) is None) == ON_HOPPER[name, backend]
    assert (unmet(blackwell) is None) == (backend != "fp8_blockscale_gemm_sm90")


def test_a_mode_of_scales_does_not_change_the_answer(on_cpu):
    routine = GEMM["gemm_fp8_nt_groupwise"]
    p = routine.params(m=16, n=256, k=256)
    by_columns, by_rows = (replace(p, scale_major_mode=mode) for mode in ("MN", "K"))
    references = [routine.reference(q, on_cpu(routine).inputs(q))[0] for q in (by_columns, by_rows)]
    assert torch.equal(*references)
