"""Grouped GEMM without a GPU: reference, planted faults, cost, and the arguments of each backend."""

from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from pytest_flashinfer_perf import capability, check
from pytest_flashinfer_perf.params import ParamError
from pytest_flashinfer_perf.routine import How
from pytest_flashinfer_perf.routines.gemm.fp8_group import API, Fp8Group, fp8_group
from pytest_flashinfer_perf.strategies import params_of
from pytest_flashinfer_perf.timing import cold

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
PLAIN = Fp8Group(group_size=4, m=24, n=200, k=256, ragged=True)


def made(p, seed=42):
    return fp8_group.inputs(p, torch.Generator().manual_seed(seed), torch.device("cpu"))


def launched(p, x):
    check.poison(fp8_group.outputs(x))
    fp8_group.backends["torch"].build(p, x, How("torch", cuda_graph=False)).launch(x)
    return x.out


def rule(p, out, x):
    return check.compare(out, fp8_group.reference(p, x)[0], *fp8_group.tolerances(p, "torch")).rule


@few
@given(params_of(Fp8Group))
def test_the_reference_is_each_rows_product_with_its_groups_weights(p):
    x = made(p)
    group_of = torch.repeat_interleave(torch.arange(p.group_size), x.m_indptr.diff())
    a_scale, b_scale = (s.transpose(-1, -2) if p.scale_major_mode == "MN" else s for s in (x.a_scale, x.b_scale))
    a = x.a.double().view(len(x.a), -1, 128) * a_scale.double()[..., None]
    b = x.b.double().view(p.group_size, p.n, -1, 128) * b_scale.double().repeat_interleave(128, 1)[:, : p.n, :, None]
    out = torch.einsum("mtk,mntk->mn", a, b[group_of])
    assert torch.allclose(fp8_group.reference(p, x)[0].double(), out, rtol=1e-4, atol=1e-5)


@few
@given(params_of(Fp8Group))
def test_the_torch_backend_agrees_with_the_reference(p):
    x = made(p)
    assert rule(p, launched(p, x), x) == ""


@few
@given(params_of(Fp8Group))
def test_groups_are_as_asked_for(p):
    x = made(p)
    rows = x.m_indptr.diff().tolist()
    assert max(rows) == p.m
    assert all(count % 4 == 0 for count in rows)
    assert set(rows) == {p.m} if not p.ragged else rows[0] == 0 or p.group_size == 1
    cost = fp8_group.cost(p, x)
    assert cost.flops == 2 * sum(rows) * p.n * p.k
    used = sum(count > 0 for count in rows)
    weights = used * (p.n * p.k + 4 * (p.k // 128) * -(-p.n // 128))
    activations = sum(rows) * (p.k + 4 * (p.k // 128) + 2 * p.n)
    assert cost.bytes == weights + activations + 4 * (p.group_size + 1)
    assert sum(t.untyped_storage().nbytes() for t in cold.tensors(x)) <= fp8_group.footprint(p) + 4096


def next_groups_weights(x):
    return x._replace(b=x.b.roll(1, 0), b_scale=x.b_scale.roll(1, 0))


def next_groups_scales(x):
    return x._replace(b_scale=x.b_scale.roll(1, 0))


def boundary_four_rows_off(x):
    indptr = x.m_indptr.clone()
    indptr[2] += 4
    return x._replace(m_indptr=indptr)


def last_group_lost(x):
    indptr = x.m_indptr.clone()
    indptr[-1] = indptr[-2]
    return x._replace(m_indptr=indptr)


@pytest.mark.parametrize("fault", [next_groups_weights, next_groups_scales, boundary_four_rows_off, last_group_lost])
def test_a_wrong_kernel_is_caught(fault):
    right = made(PLAIN)
    assert rule(PLAIN, launched(PLAIN, fault(made(PLAIN))), right)


@pytest.mark.parametrize("backend", ["cutlass", "cutile"])
def test_calls_fit_the_librarys_signature(backend, blackwell, monkeypatch):
    gemm = pytest.importorskip("flashinfer.gemm", exc_type=ImportError)
    api = create_autospec(gemm.group_gemm_fp8_nt_groupwise)
    monkeypatch.setattr("flashinfer.gemm.group_gemm_fp8_nt_groupwise", api)
    limits = fp8_group.backends[backend].limits
    shapes = [shape.params for shape in fp8_group.tiers["smoke"]()]
    shapes = [p for p in shapes if not list(limits(p, backend, blackwell))]
    for p in shapes:
        x = made(p)
        fp8_group.backends[backend].build(p, x, How(backend, cuda_graph=True)).launch(x)
        assert api.call_args.kwargs["backend"] == {"cutlass": "trtllm"}.get(backend, backend)
        assert api.call_args.kwargs["out"] is x.out
    assert api.call_count == len(shapes) >= 2


def test_what_cannot_run_is_a_sentence(hopper, blackwell, cpu, monkeypatch):
    pytest.importorskip("flashinfer", exc_type=ImportError)
    limits = fp8_group.backends["cutile"].limits
    assert "set scale_major_mode to K" in next(iter(limits(PLAIN, "cutile", blackwell)))
    with pytest.raises(ParamError, match="6 is not a multiple of 4"):
        replace(PLAIN, m=6)
    monkeypatch.setattr("pytest_flashinfer_perf.devices.Device.is_gpu", property(lambda self: self is not cpu))
    unmet = capability.missing(capability.backend("cutlass", API), hopper)
    assert unmet == f"flashinfer declares no support of {API} on compute capability 9.0"
    assert capability.hardware("cutlass", API)(blackwell) is None


def test_every_tier_is_of_distinct_cases():
    for tier in ("smoke", "default", "full"):
        ids = [shape.id for shape in fp8_group.tiers[tier]()]
        assert len(set(ids)) == len(ids) >= 7
