"""Kernels that are wrong, planted: each must break a rule of the check, with every tolerance that a backend has."""

from dataclasses import replace

import pytest
import torch
from gemms import GEMM, inputs, smoke

from pytest_flashinfer_perf.spec.params import fields_of


def out_dtypes(routine):
    return next(field.flag.choices for field in fields_of(routine.params) if field.name == "out_dtype")


def dropped(field, value=1):
    return lambda x: x._replace(**{field: torch.full_like(getattr(x, field), value)})


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


def another_boundary(group, moved):
    """The group's rows begin elsewhere."""

    def plant(x):
        indptr = x.m_indptr.clone()
        indptr[group] = moved(indptr)
        return x._replace(m_indptr=indptr)

    return plant


def all_fields(*names):
    return lambda x: all(getattr(x, name, None) is not None for name in names)


OPERANDS = {
    "dropped alpha": (dropped("alpha"), all_fields("alpha")),
    "dropped scale": (dropped("a_scale"), all_fields("a_scale")),
    "dropped bias": (dropped("bias", 0), all_fields("bias")),
    "transposed scales": (transposed_scales, lambda x: hasattr(x, "b_scale") and x.b_scale.dim() > 1),
    "another row's scales": (other_rows_scales, lambda x: hasattr(x, "a_scale") and x.a_scale.dim() > 1),
    "one tile off": (one_tile_off, all_fields("b")),
    "last tile lost": (lost_last_tile, all_fields("b")),
    "the next weights": (lambda x: x._replace(b=x.b.roll(1, 0)), lambda x: x.b.dim() > 2),
    "a group's boundary off": (another_boundary(2, lambda starts: starts[2] + 4), all_fields("m_indptr")),
    "last group lost": (another_boundary(-1, lambda starts: starts[-2]), all_fields("m_indptr")),
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


WRITTEN = {
    "2 % more": lambda out: out.mul_(1.02),
    "one NaN": lambda out: out[..., 3, 5].fill_(float("nan")),
    "one infinite": lambda out: out[..., 3, 5].fill_(float("inf")),
    "zeros": lambda out: out.zero_(),
    "unwritten last columns": lambda out: out[..., -72:].fill_(float("nan")),
    "zeroed last row": lambda out: out[..., -1, :].zero_(),
}


@pytest.mark.parametrize("fault", WRITTEN)
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, r in GEMM.items() for d in out_dtypes(r)])
def test_a_kernel_that_writes_wrongly_is_caught(name, dtype, fault, on_cpu):
    run, p = on_cpu(GEMM[name]), replace(smoke(GEMM[name])[0], out_dtype=dtype)
    x = run.inputs(p)
    out = run.launched(p, x)
    assert all(run.rule(p, out, x, backend) == "" for backend in run.routine.backends)
    WRITTEN[fault](out)
    assert all(run.rule(p, out, x, backend) for backend in run.routine.backends)
