"""The trtllm MoE routines without a GPU: the reference token by token, planted faults, work, tiers."""

import itertools
import sys
from dataclasses import replace

import pytest
import torch
from decoding import fp4
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moe_layers import ACT, UNGATED, by_tiles, rounded
from torch.profiler import ProfilerActivity, profile
from trtllm_layers import METHOD, PLAIN, ROUTINES, SIZES, by_hand

from pytest_flashinfer_perf.fuzz.search import params_of
from pytest_flashinfer_perf.kernel_timing import cold
from pytest_flashinfer_perf.routines.moe import _trtllm
from pytest_flashinfer_perf.routines.moe.fp4_block import TrtllmFp4BlockScaleMoe
from pytest_flashinfer_perf.routines.moe.trtllm_fp8 import TrtllmFp8BlockScaleMoe, TrtllmFp8PerTensorScaleMoe
from pytest_flashinfer_perf.spec import ParamError

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
drawn = st.one_of(*map(params_of, ROUTINES))
KINDS = [
    *PLAIN.values(),
    *(TrtllmFp4BlockScaleMoe(**SIZES, **METHOD, fp4_mode=f"mxfp4_{x}") for x in ("mxfp8", "bf16")),
]
everywhere = pytest.mark.parametrize("p", KINDS, ids=["nvfp4", "blocks", "tensor", "mxfp4_mxfp8", "mxfp4_bf16"])


@pytest.fixture(scope="session")
def moe(on_cpu):
    made = {params: on_cpu(routine) for params, routine in ROUTINES.items()}
    return lambda p: made[type(p)]


def layer(p, s):
    """Tokens, both weights, the factors of their products, and what happens between, in double precision."""
    ones = torch.ones(len(p.here))
    if isinstance(p, TrtllmFp8BlockScaleMoe):
        tokens = s.x.double() * s.x_scales.double().repeat_interleave(128, -1)[:, : p.hidden_size]
        return tokens, by_tiles(s.first, s.first_scales), by_tiles(s.second, s.second_scales), ones, ones, lambda a: a
    if isinstance(p, TrtllmFp8PerTensorScaleMoe):
        to_fp8 = lambda act: (act.float() * s.between).clamp(-448, 448).to(torch.float8_e4m3fn).double()  # noqa: E731
        return s.x.double(), s.first.double(), s.second.double(), s.by_first, s.by_second, to_fp8
    block = 16 if p.fp4_mode == "nvfp4" else 32
    weights = (fp4(s.first, s.first_blocks, block), fp4(s.second, s.second_blocks, block))
    if p.fp4_mode == "nvfp4":
        tokens = fp4(s.x, s.x_blocks, 16)
        return tokens, *weights, s.by_first, s.by_second, lambda act: rounded(act, s.between)
    exact = s.x.double()
    if s.x_blocks is not None:
        exact = exact * torch.exp2(s.x_blocks.double() - 127).repeat_interleave(32, -1)
    return exact, *weights, ones, ones, lambda act: act


def one_token(p, x, token):
    """Each of its choices that is here."""
    tokens, first, second, by_first, by_second, between = layer(p, x.stored)
    out = torch.zeros(p.hidden_size, dtype=torch.float64)
    weights = by_hand(p, x.logits[token].tolist(), None if x.bias is None else x.bias.tolist())
    for expert, weight in ((e - p.here.start, w) for e, w in weights.items() if e in p.here):
        rows = first[expert] @ tokens[token] * by_first[expert].double() * (weight if p.weighs_input else 1)
        half = len(rows) // 2
        gated = p.activation_type in ACT
        act = ACT[p.activation_type](rows[:half], rows[half:]) if gated else UNGATED[p.activation_type](rows)
        out += (1 if p.weighs_input else weight) * (second[expert] @ between(act)) * by_second[expert].double()
    return out


@few
@given(drawn)
def test_the_reference_is_the_sum_over_each_tokens_experts(moe, p):
    x = moe(p).inputs(p)
    wanted = torch.stack([one_token(p, x, token) for token in range(p.num_tokens)])
    got = ROUTINES[type(p)].reference(p, x)[0].double()
    # A narrow value between the products may be tipped over by another order of sums.
    tipped_over = {"nvfp4": 0.15, "fp8": 0.02}.get(getattr(p, "fp4_mode", "fp8"), 1e-4)
    assert bool(((got - wanted).abs() <= tipped_over * wanted.square().mean().sqrt() + 1e-4 * wanted.abs()).all())


@few
@given(drawn)
def test_the_torch_backend_agrees_with_the_reference(moe, p):
    x = moe(p).inputs(p)
    assert moe(p).rule(p, moe(p).launched(p, x), x) == ""


@few
@given(drawn)
def test_work_is_that_of_the_experts_here(moe, p):
    x, routine = moe(p).inputs(p), ROUTINES[type(p)]
    tokens = [by_hand(p, logits, None if x.bias is None else x.bias.tolist()) for logits in x.logits.float().tolist()]
    choices = [expert for chosen in tokens for expert in chosen if expert in p.here]
    facts, cost = routine.facts(p, x), routine.cost(p, x)
    assert (facts["expert_tokens"], facts["active_experts"]) == (len(choices), len(set(choices)))
    assert facts["largest_load"] == max((choices.count(choice) for choice in choices), default=0)
    columns = p.intermediate_size * (2 if p.activation_type in ACT else 1)
    assert cost.flops == 2 * len(choices) * p.hidden_size * (columns + p.intermediate_size)
    of_experts = sum(t.nbytes for t in cold.tensors(x.stored) if t.dim() == 3)
    assert cost.bytes == sum(t.nbytes for t in cold.tensors(x)) - of_experts * (1 - len(set(choices)) / len(p.here))
    assert sum(t.untyped_storage().nbytes() for t in cold.tensors(x)) <= routine.footprint(p) + 4096


def peak_memory(call):
    """Bytes that torch has allocated at once, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    del kept
    return max(itertools.accumulate(sizes))


SHUFFLED = {"use_shuffled_weight": True}
ARRANGED = [*KINDS, *(replace(PLAIN[TrtllmFp8BlockScaleMoe], **SHUFFLED, weight_layout=layout) for layout in (0, 2))]


@pytest.mark.parametrize("p", ARRANGED, ids=lambda p: f"{type(p).__name__}-{p.slug()}")
def test_weights_are_never_there_but_as_they_are_stored_and_as_they_are_passed(p):
    p = replace(p, num_tokens=4, hidden_size=256, intermediate_size=256, num_experts=96)
    routine, module = ROUTINES[type(p)], sys.modules[type(p).__module__]
    as_passed = module._tensors_as_passed if type(p) is TrtllmFp8PerTensorScaleMoe else module._as_passed

    def prepared():
        x = routine.inputs(p, torch.Generator().manual_seed(1), torch.device("cpu"))
        return x, routine.reference(p, x), as_passed(p, x.stored)

    assert 0.6 * routine.footprint(p) <= peak_memory(prepared) <= routine.footprint(p)


def stored(x, /, **changes):
    return replace(x, stored=x.stored._replace(**changes))


def raw(t):
    return t.view(torch.uint8)


def swapped_experts(x):
    return stored(x, first=raw(x.stored.first).roll(1, 0).view(x.stored.first.dtype))


def swapped_gate_and_up(x):
    first = x.stored.first
    return stored(x, first=raw(first).roll(first.shape[1] // 2, 1).view(first.dtype))


def next_experts_weights(x):
    return stored(x, second=raw(x.stored.second).roll(1, 0).view(x.stored.second.dtype))


def every_token_its_neighbours_choice(x):
    return replace(x, logits=x.logits.roll(1, 0))


def last_token_lost(x):
    tokens = raw(x.stored.x).clone()
    tokens[-1] = 0
    return stored(x, x=tokens.view(x.stored.x.dtype))


def second_choice_instead_of_the_first(x):
    best = x.logits.argmax(-1, keepdim=True)
    return replace(x, logits=x.logits.scatter(-1, best, -100.0))


def weighted_alike(x):
    return replace(x, logits=torch.where(x.logits >= x.logits.topk(2).values[:, 1:], 5.0, -5.0).to(x.logits.dtype))


FAULTS = (
    swapped_experts,
    swapped_gate_and_up,
    next_experts_weights,
    every_token_its_neighbours_choice,
    last_token_lost,
    second_choice_instead_of_the_first,
    weighted_alike,
)


@everywhere
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_caught(moe, p, fault):
    wrong = moe(p).launched(p, fault(moe(p).inputs(p)))
    assert moe(p).rule(p, wrong, moe(p).inputs(p))
    assert moe(p).rule(p, wrong, moe(p).inputs(p), "trtllm")


SCALES = [
    (PLAIN[TrtllmFp4BlockScaleMoe], ("x_blocks", "first_blocks", "by_first", "second_blocks", "by_second")),
    (PLAIN[TrtllmFp8BlockScaleMoe], ("x_scales", "first_scales", "second_scales")),
    (PLAIN[TrtllmFp8PerTensorScaleMoe], ("by_first", "by_second")),
    (KINDS[3], ("x_blocks", "first_blocks", "second_blocks")),
    (KINDS[4], ("first_blocks", "second_blocks")),
]


@pytest.mark.parametrize(("p", "name"), [(p, name) for p, names in SCALES for name in names])
def test_a_scale_that_is_another_experts_or_none_is_caught(moe, p, name):
    for change in (lambda scale: raw(scale).roll(1, 0).view(scale.dtype), torch.ones_like):
        x = moe(p).inputs(p)
        wrong = moe(p).launched(p, stored(x, **{name: change(getattr(x.stored, name))}))
        assert moe(p).rule(p, wrong, moe(p).inputs(p), "trtllm")


@everywhere
def test_an_expert_that_nobody_chose_is_not_counted_in(moe, p):
    p = replace(p, expert_load="one")
    right = moe(p).inputs(p)
    unchosen = moe(p).inputs(p)
    raw(unchosen.stored.first)[7] = 0x7F
    assert moe(p).rule(p, moe(p).launched(p, unchosen), right) == ""
    off_by_one = replace(right, logits=right.logits.roll(1, -1))
    assert moe(p).rule(p, moe(p).launched(p, off_by_one), right)


@everywhere
@pytest.mark.parametrize("value", [0.0, float("nan"), 1.05])
def test_a_wrong_output_is_caught(moe, p, value):
    x = moe(p).inputs(p)
    out = moe(p).launched(p, x)
    out *= value
    assert moe(p).rule(p, out, x, "trtllm")


def test_the_parts_of_all_gpus_add_up_to_the_whole(moe):
    for p in KINDS:
        whole = moe(p).inputs(p)
        parts = []
        for first in (0, 4):
            here = replace(p, local_expert_offset=first, local_num_experts=4)
            experts = {
                name: value[first : first + 4]
                for name, value in whole.stored._asdict().items()
                if name.startswith(("first", "second", "by_"))
            }
            parts.append(ROUTINES[type(p)].reference(here, stored(whole, **experts))[0])
        assert torch.allclose(sum(parts), ROUTINES[type(p)].reference(p, whole)[0], rtol=1e-4, atol=1e-5)


def test_every_tier_is_of_distinct_cases():
    for routine in ROUTINES.values():
        for tier in ("smoke", "default", "full"):
            ids = [shape.id for shape in routine.tiers[tier]()]
            assert len(set(ids)) == len(ids) >= 9
            assert all(
                "renormalize" in name or "topk" in name or "deepseek_v3" in name or "llama4" in name for name in ids
            )


def test_a_choice_of_experts_that_stays_unclear_is_refused(monkeypatch):
    monkeypatch.setattr(_trtllm, "CLEAR", float("inf"))
    with pytest.raises(ParamError, match=r"rounding decides the experts of \d+ tokens, after 100 draws"):
        _trtllm.inputs(KINDS[0], None, torch.float32, torch.Generator())
