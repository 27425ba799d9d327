"""Kernels that are wrong, planted: each must break a rule of the check, with every tolerance that a backend has."""

from dataclasses import replace

import pytest
import torch
from gemms import GEMM, inputs, smoke

from pytest_flashinfer_perf.spec.params import fields_of


def out_dtypes(routine):
    return next(field.flag.choices for field in fields_of(routine.params) if field.name == "out_dtype")


def dropped(field):
    return lambda x: x._replace(**{field: torch.ones_like(getattr(x, field))})


def no_bias(x):
    return x._replace(bias=torch.zeros_like(x.bias))


def transposed_scales(x):
    """Scales of a square part, rows for columns."""
    side = min(x.b_scale.shape[-2:])
    scales = x.b_scale.clone()
    scales[..., :side, :side] = x.b_scale[..., :side, :side].mT
    return x._replace(b_scale=scales)


def other_rows_scales(x):
    return x._replace(a_scale=x.a_scale.roll(1, -1 if x.a_scale.shape[-1] == x.a.shape[0] else 0))


def one_tile_off(x):
    return x._replace(b=x.b.view(torch.uint8).roll(32, -1).view(x.b.dtype))


def lost_last_tile(x):
    b = x.b.clone()
    b.view(torch.uint8)[..., -32:] = 0
    return x._replace(b=b)


def next_weights(x):
    return x._replace(b=x.b.roll(1, 0))


def boundary_off(x):
    indptr = x.m_indptr.clone()
    indptr[2] += 4
    return x._replace(m_indptr=indptr)


def last_group_lost(x):
    indptr = x.m_indptr.clone()
    indptr[-1] = indptr[-2]
    return x._replace(m_indptr=indptr)


def all_fields(*names):
    return lambda x: all(getattr(x, name, None) is not None for name in names)


OPERANDS = {
    "dropped alpha": (dropped("alpha"), all_fields("alpha")),
    "dropped scale": (dropped("a_scale"), all_fields("a_scale")),
    "dropped bias": (no_bias, all_fields("bias")),
    "transposed scales": (transposed_scales, lambda x: hasattr(x, "b_scale") and x.b_scale.dim() > 1),
    "another row's scales": (other_rows_scales, lambda x: hasattr(x, "a_scale") and x.a_scale.dim() > 1),
    "one tile off": (one_tile_off, all_fields("b")),
    "last tile lost": (lost_last_tile, all_fields("b")),
    "the next weights": (next_weights, lambda x: x.b.dim() > 2),
    "a group's boundary off": (boundary_off, all_fields("m_indptr")),
    "last group lost": (last_group_lost, all_fields("m_indptr")),
}


def applicable():
    """Each fault in each routine that has such operands, with the first of its shapes that has them."""
    for name, routine in GEMM.items():
        made = [(p, inputs(routine, p)) for p in smoke(routine)]
        for fault, (_, applies) in OPERANDS.items():
            fitting = [p for p, x in made if applies(x)]
            yield from (pytest.param(name, fault, p, id=f"{name}-{fault}") for p in fitting[:1])


@pytest.mark.parametrize(("name", "fault", "p"), list(applicable()))
def test_a_kernel_on_wrong_operands_is_caught(name, fault, p, on_cpu):
    plant, _ = OPERANDS[fault]
    run = on_cpu(GEMM[name])
    out = run.launched(p, plant(run.inputs(p)))
    for backend in GEMM[name].backends:
        assert run.rule(p, out, run.inputs(p), backend), backend


def times_1_02(out):
    out *= 1.02


def one_nan(out):
    out[..., 3, 5] = float("nan")


def one_infinite(out):
    out[..., 3, 5] = float("inf")


def zeros(out):
    out.zero_()


def unwritten_last_columns(out):
    out[..., -72:] = float("nan")


def zeroed_last_row(out):
    out[..., -1, :] = 0


@pytest.mark.parametrize("fault", [times_1_02, one_nan, one_infinite, zeros, unwritten_last_columns, zeroed_last_row])
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, r in GEMM.items() for d in out_dtypes(r)])
def test_a_kernel_that_writes_wrongly_is_caught(name, dtype, fault, on_cpu):
    run, p = on_cpu(GEMM[name]), replace(smoke(GEMM[name])[0], out_dtype=dtype)
    x = run.inputs(p)
    out = run.launched(p, x)
    assert all(run.rule(p, out, x, backend) == "" for backend in run.routine.backends)
    fault(out)
    assert all(run.rule(p, out, x, backend) for backend in run.routine.backends)
