"""Every GEMM routine without a GPU: its reference in double precision, its torch backend, its cost, its tiers."""

import pytest
import torch
from decoding import fp4
from drawing import few
from gemms import DENSE, GEMM
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.routines.gemm.bmm import BmmFp8, bmm_fp8
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.strategies import params_of

everywhere = pytest.mark.parametrize("routine", GEMM.values(), ids=GEMM)


def product(_p, x):
    products = torch.einsum("...mk,...nk->...mn", x.a.double(), x.b.double())
    return products if getattr(x, "bias", None) is None else products + x.bias.double()


def tile_by_tile(p, x):
    """Each 128 columns of the operands by their own scales."""
    by_column = p.scale_major_mode == "MN"
    out = torch.zeros(p.m, p.n, dtype=torch.float64)
    for i in range(p.k // 128):
        columns = slice(128 * i, 128 * i + 128)
        a_scale, b_scale = (s[i] if by_column else s[:, i] for s in (x.a_scale, x.b_scale))
        partial = x.a[:, columns].double() @ x.b[:, columns].double().T
        out += partial * a_scale.double()[:, None] * b_scale.double().repeat_interleave(128)[: p.n]
    return out


def row_by_row(p, x, a, b):
    """Rows with the weights of the group that they belong to."""
    group_of = torch.repeat_interleave(torch.arange(p.group_size), x.m_indptr.diff())
    return torch.einsum("mk,mnk->mn", a, b[group_of])


def scaled_rows(p, x):
    a_scale, b_scale = (s.mT if p.scale_major_mode == "MN" else s for s in (x.a_scale, x.b_scale))
    a = x.a.double() * a_scale.double().repeat_interleave(128, 1)
    b = x.b.double() * b_scale.double().repeat_interleave(128, 1)[:, : p.n].repeat_interleave(128, 2)
    return row_by_row(p, x, a, b)


def of_fp4(p, x):
    product = fp4(x.a, x.a_scale, p.block) @ fp4(x.b, x.b_scale, p.block).T
    return product if x.alpha is None else product * x.alpha.double()


MEANING = {
    **dict.fromkeys(DENSE, product),
    "gemm_fp8_nt_groupwise": tile_by_tile,
    "group_gemm_fp8_nt_groupwise": scaled_rows,
    "bmm_fp8": lambda _p, x: torch.einsum("bmk,bnk->bmn", x.a.double() * x.a_scale, x.b.double() * x.b_scale),
    "mm_fp8": lambda _p, x: (x.a.double() @ x.b.double().T) * x.alpha.double(),
    "mm_fp4": of_fp4,
    "grouped_mm_bf16": lambda p, x: row_by_row(p, x, x.a.double(), x.b.double()),
    "grouped_mm_fp8": lambda p, x: row_by_row(p, x, x.a.double() * x.alpha, x.b.double()),
}


@pytest.mark.parametrize("name", MEANING)
@few(25)
@given(data=st.data())
def test_the_reference_is_what_the_operands_mean(name, on_cpu, data):
    routine = GEMM[name]
    p = data.draw(params_of(routine.params))
    x = on_cpu(routine).inputs(p)
    wanted = MEANING[name](p, x)
    size = wanted.square().mean().sqrt().item()
    assert torch.allclose(routine.reference(p, x)[0].double(), wanted, rtol=1e-4, atol=1e-5 * size)


@pytest.mark.parametrize("types", [("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3")])
def test_a_row_of_small_products_keeps_float16s_precision(types, on_cpu):
    """With k = 1 nothing larger stands beside them."""
    p = BmmFp8(batch_size=1, m=96, n=16, k=1, input_dtype=types[0], mat2_dtype=types[1], out_dtype="float16")
    x = on_cpu(bmm_fp8).inputs(p, seed=0)
    assert on_cpu(bmm_fp8).rule(p, on_cpu(bmm_fp8).launched(p, x), x) == ""


def output_width(p):
    return {"float32": 4}.get(p.out_dtype, 2)


def dense_bytes(p, of_value, more=0):
    batch = getattr(p, "batch_size", 1)
    return batch * ((p.m + p.n) * p.k * of_value + p.m * p.n * output_width(p)) + more


def grouped_bytes(p, x, of_value, of_weight_scales=0, of_row=0):
    """Of the weights those of groups that have rows."""
    rows = x.m_indptr.diff().tolist()
    weights = sum(count > 0 for count in rows) * (p.n * p.k * of_value + of_weight_scales)
    return weights + sum(rows) * (p.k * of_value + of_row + p.n * output_width(p)) + 4 * (p.group_size + 1)


def tiles(p):
    return p.k // 128, -(-p.n // 128)


BYTES = {
    **dict.fromkeys(DENSE, lambda p, _x: dense_bytes(p, 2, 2 * p.n * getattr(p, "bias", False))),
    "gemm_fp8_nt_groupwise": lambda p, _x: dense_bytes(p, 1, 4 * tiles(p)[0] * (p.m + tiles(p)[1])),
    "group_gemm_fp8_nt_groupwise": lambda p, x: grouped_bytes(p, x, 1, 4 * tiles(p)[0] * tiles(p)[1], 4 * tiles(p)[0]),
    "bmm_fp8": lambda p, _x: dense_bytes(p, 1, 8),
    "mm_fp8": lambda p, _x: dense_bytes(p, 1, 4),
    "mm_fp4": lambda p, _x: dense_bytes(p, 0.5, (p.m + p.n) * p.k / p.block + 4 * p.use_nvfp4),
    "grouped_mm_bf16": lambda p, x: grouped_bytes(p, x, 2),
    "grouped_mm_fp8": lambda p, x: grouped_bytes(p, x, 1) + 4,
}


@everywhere
@few(25)
@given(data=st.data())
def test_work_is_counted_with_batch_groups_scales_and_alpha(routine, on_cpu, data):
    p = data.draw(params_of(routine.params))
    x = on_cpu(routine).inputs(p)
    cost = routine.cost(p, x)
    rows = int(x.m_indptr[-1]) if hasattr(p, "group_size") else p.m * getattr(p, "batch_size", 1)
    assert cost.flops == 2 * rows * p.n * p.k
    assert routine.name not in BYTES or cost.bytes == BYTES[routine.name](p, x)


def test_models_projections_are_in_the_tiers():
    ids = [shape.id for shape in GEMM["gemm_fp8_nt_groupwise"].tiers["default"]()]
    assert {"llama-3.1-70b-gate-up-m4096", "llama-3.1-70b-tp8-o-m16-K"} <= set(ids)


def test_projections_have_the_sizes_of_the_models():
    whole = layers.projections("llama-3.1-70b").parameters
    assert whole["qkv"] == {"n": 10240, "k": 8192}
    assert whole["gate-up"] == {"n": 57344, "k": 8192}
    assert layers.projections("llama-3.1-70b", 8).parameters["down"] == {"n": 8192, "k": 3584}
    assert layers.projections("qwen3-32b", 8).parameters["o"] == {"n": 5120, "k": 1024}
    deepseek = layers.projections("deepseek-v3", 8).parameters
    assert deepseek["qkv"] == {"n": 1536 + 512 + 64, "k": 7168}
    assert deepseek["o"] == {"n": 7168, "k": 16 * 128}
    assert set(layers.projections("gpt-oss-120b").parameters) == {"qkv", "o", "lm-head"}
    assert set(layers.projections.layers) == set(layers.expanded.layers)


@pytest.mark.parametrize("name", [name for name in GEMM if "group_" in name or "grouped" in name])
@few(25)
@given(data=st.data())
def test_groups_are_as_asked_for(name, on_cpu, data):
    routine = GEMM[name]
    p = data.draw(params_of(routine.params))
    rows = on_cpu(routine).inputs(p).m_indptr.diff().tolist()
    assert max(rows) == p.m
    assert all(count % p.row_step == 0 for count in rows)
    assert set(rows) == {p.m} if not p.ragged else rows[0] == 0 or p.group_size == 1


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("gemm_fp8_nt_groupwise", {"tile_size": 64}, "tile_size: "),
        ("gemm_fp8_nt_groupwise", {"k": 100}, "k: 100 is not a multiple of 128"),
        ("gemm_fp8_nt_groupwise", {"mma_sm": 3}, "mma_sm: "),
        ("group_gemm_fp8_nt_groupwise", {"m": 6}, "6 is not a multiple of 4"),
        ("mm_fp4", {"k": 48}, "k: 48 is not a multiple of 32"),
        ("mm_fp8", {"out_dtype": "float16"}, "out_dtype: must be one of bfloat16"),
        ("bmm_fp8", {"input_dtype": "bfloat16"}, "input_dtype: must be one of fp8_e4m3, fp8_e5m2"),
    ],
)
def test_what_no_kernel_has_is_an_error(name, change, sentence):
    with pytest.raises(ParamError, match=sentence):
        GEMM[name].params(**{"m": 16, "n": 256, "k": 256, **change})
