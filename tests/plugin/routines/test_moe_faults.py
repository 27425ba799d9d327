"""Planted errors of fused MoE kernels, each caught with torch's tolerance and with that of the kernel's backend."""

import functools
from dataclasses import replace

import pytest
import torch
from moe_layers import VARIANTS, plain, raw, stored
from trtllm_layers import KINDS, ROUTINES, run_of

from pytest_flashinfer_perf.checking import check

CUTLASS = {variant: plain(variant) for variant in VARIANTS}
LAYERS = {**CUTLASS, **KINDS}
SCALES = (
    "by_first",
    "by_second",
    *(f"{of}_{kind}" for of in ("x", "first", "second") for kind in ("blocks", "scales")),
)


@functools.cache
def expected(p):
    return run_of(p).routine.reference(p, run_of(p).inputs(p))[0]


def is_caught(p, out):
    """By each tolerance."""
    routine, backends = run_of(p).routine, ("torch", "trtllm" if type(p) in ROUTINES else "cutlass")
    return all(check.compare(out, expected(p), *routine.tolerances(p, name)).rule for name in backends)


def rolled(t, by=1, dim=0):
    return raw(t).roll(by, dim).view(t.dtype)


def halves_swapped(pairs):
    return (raw(pairs) >> 4 | raw(pairs) << 4).view(pairs.dtype)


def one_token_lost(x):
    weights = x.weights.clone()
    weights[7] = 0
    return x._replace(weights=weights)


def last_token_lost(x):
    tokens = raw(x.stored.x).clone()
    tokens[-1] = 0
    return stored(x, x=tokens.view(x.stored.x.dtype))


def second_choice_instead_of_the_first(x):
    best = x.logits.argmax(-1, keepdim=True)
    return replace(x, logits=x.logits.scatter(-1, best, -100.0))


def weighted_alike(x):
    return replace(x, logits=torch.where(x.logits >= x.logits.topk(2).values[:, 1:], 5.0, -5.0).to(x.logits.dtype))


WEIGHTS = {
    "experts swapped": lambda x: stored(x, first=rolled(x.stored.first)),
    "gate and up swapped": lambda x: stored(x, first=rolled(x.stored.first, x.stored.first.shape[1] // 2, 1)),
    "the next expert's weights": lambda x: stored(x, second=rolled(x.stored.second)),
}
CHOSEN = {
    "equal weights": lambda x: x._replace(weights=torch.full_like(x.weights, 0.5)),
    "one token lost": one_token_lost,
    "second choice lost": lambda x: x._replace(weights=x.weights * torch.tensor([1.0, 0.0])),
}
ROUTED = {
    "each token its neighbour's choice": lambda x: replace(x, logits=x.logits.roll(1, 0)),
    "last token lost": last_token_lost,
    "second choice instead of the first": second_choice_instead_of_the_first,
    "weighted alike": weighted_alike,
}


def faults_of(p):
    """By name; of scales each that the layer has: another expert's or row's, and none."""
    yield from (WEIGHTS | (ROUTED if type(p) in ROUTINES else CHOSEN)).items()
    made = run_of(p).inputs(p).stored
    for name in SCALES:
        if isinstance(getattr(made, name, None), torch.Tensor):
            yield f"another's {name}", lambda x, name=name: stored(x, **{name: rolled(getattr(x.stored, name))})
            yield f"no {name}", lambda x, name=name: stored(x, **{name: torch.ones_like(getattr(x.stored, name))})
    if p is CUTLASS["w4a8"]:
        yield "halves swapped", lambda x: stored(x, first=halves_swapped(x.stored.first))


PLANTED = [pytest.param(p, f, id=f"{kind}-{name}") for kind, p in LAYERS.items() for name, f in faults_of(p)]


@pytest.mark.parametrize(("p", "fault"), PLANTED)
def test_a_wrong_kernel_is_caught(p, fault):
    run = run_of(p)
    assert is_caught(p, run.launched(p, fault(run.inputs(p))))


@pytest.mark.parametrize("value", [0.0, float("nan"), 1.05])
@pytest.mark.parametrize("p", LAYERS.values(), ids=LAYERS)
def test_a_wrong_output_is_caught(p, value):
    out = run_of(p).launched(p, run_of(p).inputs(p))
    assert not is_caught(p, out)
    out *= value
    assert is_caught(p, out)


@pytest.mark.parametrize("p", KINDS.values(), ids=KINDS)
def test_an_expert_that_nobody_chose_is_not_counted_in(p):
    run, p = run_of(p), replace(p, expert_load="one")
    right, unchosen = run.inputs(p), run.inputs(p)
    raw(unchosen.stored.first)[7] = 0x7F
    assert run.rule(p, run.launched(p, unchosen), right) == ""
    assert run.rule(p, run.launched(p, replace(right, logits=right.logits.roll(1, -1))), right)
