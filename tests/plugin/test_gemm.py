"""GEMM without a GPU: references, planted faults, costs, and the arguments of each backend."""

import inspect
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from pytest_flashinfer_perf import capability, check, models
from pytest_flashinfer_perf.params import ParamError
from pytest_flashinfer_perf.routine import How
from pytest_flashinfer_perf.routines.gemm.fp8_groupwise import API, Fp8Groupwise, fp8_groupwise
from pytest_flashinfer_perf.strategies import params_of
from pytest_flashinfer_perf.timing import cold

few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLAIN = Fp8Groupwise(m=40, n=200, k=384)


def made(p, seed=42):
    return fp8_groupwise.inputs(p, torch.Generator().manual_seed(seed), torch.device("cpu"))


def launched(p, x, backend="torch"):
    check.poison(fp8_groupwise.outputs(x))
    fp8_groupwise.backends[backend].build(p, x, How(backend, cuda_graph=False)).launch(x)
    return x.out


def rule(p, out, x):
    return check.compare(out, fp8_groupwise.reference(p, x)[0], *fp8_groupwise.tolerances(p, "torch")).rule


@few
@given(params_of(Fp8Groupwise))
def test_the_reference_is_the_product_tile_by_tile(p):
    """Each tile of the operands by its own scale, in double precision."""
    x = made(p)
    out = torch.zeros(p.m, p.n, dtype=torch.float64)
    for i in range(p.k // 128):
        columns = slice(128 * i, 128 * i + 128)
        a_scale, b_scale = (s[i] if p.scale_major_mode == "MN" else s[:, i] for s in (x.a_scale, x.b_scale))
        partial = x.a[:, columns].double() @ x.b[:, columns].double().T
        out += partial * a_scale.double()[:, None] * b_scale.double().repeat_interleave(128)[: p.n]
    assert torch.allclose(fp8_groupwise.reference(p, x)[0].double(), out, rtol=1e-4, atol=1e-5)


@few
@given(params_of(Fp8Groupwise))
def test_the_torch_backend_agrees_with_the_reference(p):
    x = made(p)
    assert rule(p, launched(p, x), x) == ""


def dropped_scale(x):
    return x._replace(a_scale=torch.ones_like(x.a_scale))


def transposed_scales(x):
    return x._replace(b_scale=x.b_scale.flip(0, 1))


def one_tile_off(x):
    return x._replace(b=x.b.roll(128, 1))


def lost_last_tile(x):
    b = x.b.clone()
    b[:, -128:] = 0
    return x._replace(b=b)


@pytest.mark.parametrize("fault", [dropped_scale, transposed_scales, one_tile_off, lost_last_tile])
@pytest.mark.parametrize("mode", ["MN", "K"])
def test_a_kernel_on_wrong_operands_is_caught(fault, mode):
    p = replace(PLAIN, scale_major_mode=mode)
    assert rule(p, launched(p, fault(made(p))), made(p))


def times_1_02(out):
    out *= 1.02


def one_nan(out):
    out[3, 5] = float("nan")


def zeros(out):
    out.zero_()


def unwritten_last_columns(out):
    out[:, -72:] = float("nan")


@pytest.mark.parametrize("fault", [times_1_02, one_nan, zeros, unwritten_last_columns])
def test_a_kernel_that_writes_wrongly_is_caught(fault):
    x = made(PLAIN)
    out = launched(PLAIN, x)
    fault(out)
    assert rule(PLAIN, out, x)


@few
@given(params_of(Fp8Groupwise))
def test_work_is_counted_with_the_scales(p):
    x = made(p)
    cost, tiles = fp8_groupwise.cost(p, x), p.k // 128
    assert cost.flops == 2 * p.m * p.n * p.k
    assert cost.bytes == (p.m + p.n) * p.k + 4 * tiles * (p.m + -(-p.n // 128)) + 2 * p.m * p.n
    assert sum(t.untyped_storage().nbytes() for t in cold.tensors(x)) <= fp8_groupwise.footprint(p)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"tile_size": 64}, "tile_size: "), ({"k": 100}, "k: 100 is not a multiple of 128"), ({"mma_sm": 3}, "mma_sm: ")],
)
def test_what_no_kernel_has_is_an_error(change, sentence):
    with pytest.raises(ParamError, match=sentence):
        replace(PLAIN, **change)


@pytest.mark.parametrize("backend", ["cutlass", "trtllm", "cutile"])
def test_calls_fit_the_librarys_signature(backend, blackwell, monkeypatch):
    gemm = pytest.importorskip("flashinfer.gemm", exc_type=ImportError)
    api = create_autospec(gemm.gemm_fp8_nt_groupwise)
    monkeypatch.setattr("flashinfer.gemm.gemm_fp8_nt_groupwise", api)
    limits = fp8_groupwise.backends[backend].limits
    shapes = [shape.params for shape in fp8_groupwise.tiers["smoke"]()]
    shapes = [p for p in shapes if not list(limits(p, backend, blackwell))]
    for p in shapes:
        x = made(p)
        fp8_groupwise.backends[backend].build(p, x, How(backend, cuda_graph=True)).launch(x)
        assert api.call_args.kwargs["backend"] == backend
        assert api.call_args.kwargs["out"] is x.out
    assert api.call_count == len(shapes) >= 1


def test_the_librarys_own_reference_agrees_on_the_arguments_we_pass():
    """Its trace template reads K-major scales only."""
    templates = pytest.importorskip("flashinfer.trace.templates.gemm", exc_type=ImportError)
    template = templates.gemm_fp8_nt_groupwise_trace
    p = replace(PLAIN, scale_major_mode="K", n=256)
    x = made(p)
    names = list(inspect.signature(template.reference).parameters)[:4]
    theirs = template.reference(**dict(zip(names, (x.a, x.b, x.a_scale, x.b_scale), strict=True)))
    assert rule(p, theirs, x) == ""


@pytest.mark.parametrize(
    ("change", "backend", "sentence"),
    [
        ({"m": 1}, "cutlass", "m in steps of 4, not 1"),
        ({}, "cutile", "set scale_major_mode to K"),
        ({"scale_major_mode": "K"}, "trtllm", "set scale_major_mode to MN"),
        ({"k": 128}, "trtllm", "k of at least 256, not 128"),
        ({"out_dtype": "float16"}, "trtllm", "writes bfloat16 only"),
    ],
)
def test_a_limit_is_a_sentence_with_a_way_out(blackwell, change, backend, sentence):
    limits = fp8_groupwise.backends[backend].limits(replace(PLAIN, **change), backend, blackwell)
    assert sentence in next(iter(limits))


def test_where_it_runs_is_what_its_decorators_say(hopper, blackwell, cpu, monkeypatch):
    pytest.importorskip("flashinfer", exc_type=ImportError)
    monkeypatch.setattr("pytest_flashinfer_perf.devices.Device.is_gpu", property(lambda self: self is not cpu))
    unmet = capability.missing(capability.backend("cutlass", API), hopper)
    assert unmet == f"flashinfer declares no support of {API} with backend cutlass on compute capability 9.0"
    assert capability.hardware("cutlass", API)(blackwell) is None
    assert capability.hardware("fa3", "BatchPrefillWithPagedKVCacheWrapper")(hopper) is None


def test_projections_have_the_sizes_of_the_models():
    whole = models.projections("llama-3.1-70b").settles
    assert whole["qkv"] == {"n": 10240, "k": 8192}
    assert whole["gate-up"] == {"n": 57344, "k": 8192}
    assert models.projections("llama-3.1-70b", 8).settles["down"] == {"n": 8192, "k": 3584}
    assert models.projections("qwen3-32b", 8).settles["o"] == {"n": 5120, "k": 1024}


def test_every_tier_is_of_distinct_cases():
    for tier in ("smoke", "default", "full"):
        ids = [shape.id for shape in fp8_groupwise.tiers[tier]()]
        assert len(set(ids)) == len(ids) >= 6
    assert "llama-3.1-70b-tp8-qkv-m16-K" in [shape.id for shape in fp8_groupwise.tiers["default"]()]
