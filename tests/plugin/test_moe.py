"""MoE without a GPU: loads, the reference token by token, planted faults, work, and the arguments of each backend."""

import inspect
import json
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from decoding import fp4
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf.params import ParamError
from pytest_flashinfer_perf.quantise import blocks
from pytest_flashinfer_perf.routines.moe import _load
from pytest_flashinfer_perf.routines.moe.cutlass import CutlassFusedMoe, cutlass_moe
from pytest_flashinfer_perf.strategies import params_of
from pytest_flashinfer_perf.timing import cold

few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
PLAIN = CutlassFusedMoe(num_tokens=33, hidden_size=64, intermediate_size=64, num_experts=8, top_k=2)
ACT = {
    "Swiglu": lambda up, gate: up * gate * torch.sigmoid(gate),
    "Geglu": lambda up, gate: up * gate * (1 + torch.erf(gate / 2**0.5)) / 2,
}


@pytest.fixture(scope="session")
def moe(on_cpu):
    return on_cpu(cutlass_moe)


def rounded(x, unit):
    q = blocks.nvfp4(x.float(), unit.item())
    return fp4(q.values, q.scales, 16)


def layer(p, x):
    """Tokens, both weights, the factors of their products, and what happens between, in double precision."""
    s = x.stored
    if p.cutlass_variant == "base":
        ones = torch.ones(p.local_experts)
        return s.x.double(), s.first.double(), s.second.double(), ones, ones, lambda act: act
    if p.cutlass_variant == "fp8":
        by_first, between, by_second, _ = s.scales
        to_fp8 = lambda act: (act.float() * between).clamp(-448, 448).to(torch.float8_e4m3fn).double()  # noqa: E731
        return s.x.double(), s.first.double(), s.second.double(), by_first, by_second, to_fp8
    unit, first, by_first, between, second, by_second = s.scales
    tokens = fp4(s.x, s.x_blocks, 16) if p.quantized_input else rounded(s.x, unit)
    weights = (fp4(s.first, first, 16), fp4(s.second, second, 16))
    return tokens, *weights, by_first, by_second, lambda act: rounded(act, between)


def one_token(p, x, token):
    """Each of its choices that is here."""
    tokens, first, second, by_first, by_second, between = layer(p, x)
    out = torch.zeros(p.hidden_size, dtype=torch.float64)
    for choice, weight in zip(x.selected[token].tolist(), x.weights[token].double(), strict=True):
        expert = choice - p.ep_rank * p.local_experts
        if not 0 <= expert < p.local_experts:
            continue
        rows = first[expert] @ tokens[token] * by_first[expert].double()
        half = len(rows) // 2
        gated = p.activation_type in ACT
        act = ACT[p.activation_type](rows[:half], rows[half:]) if gated else rows.clamp_min(0) ** 2
        out += weight * (second[expert] @ between(act)) * by_second[expert].double()
    return out


@few
@given(params_of(CutlassFusedMoe))
def test_the_reference_is_the_sum_over_each_tokens_experts(moe, p):
    x = moe.inputs(p)
    wanted = torch.stack([one_token(p, x, token) for token in range(p.num_tokens)])
    got = cutlass_moe.reference(p, x)[0].double()
    # A narrow value between the products may be tipped over by another order of sums.
    tipped_over = {"base": 1e-4, "fp8": 0.02, "nvfp4": 0.15}[p.cutlass_variant]
    assert bool(((got - wanted).abs() <= tipped_over * wanted.square().mean().sqrt() + 1e-4 * wanted.abs()).all())


@few
@given(params_of(CutlassFusedMoe))
def test_the_torch_backend_agrees_with_the_reference(moe, p):
    x = moe.inputs(p)
    assert moe.rule(p, moe.launched(p, x), x) == ""


@few
@given(params_of(CutlassFusedMoe))
def test_work_is_that_of_the_experts_here(moe, p):
    x = moe.inputs(p)
    here = range(p.ep_rank * p.local_experts, (p.ep_rank + 1) * p.local_experts)
    choices = [choice for choice in x.selected.flatten().tolist() if choice in here]
    facts, cost = cutlass_moe.facts(p, x), cutlass_moe.cost(p, x)
    assert facts["expert_tokens"] == len(choices)
    assert facts["active_experts"] == len(set(choices))
    assert facts["largest_load"] == max((choices.count(choice) for choice in choices), default=0)
    columns = p.local_intermediate * (2 if p.activation_type in ACT else 1)
    assert cost.flops == 2 * len(choices) * p.hidden_size * (columns + p.local_intermediate)
    token, weight, scales = {
        "base": (2, 2, 0),
        "fp8": (1, 1, 2 * p.local_experts + 2),
        "nvfp4": (0.5625 if p.quantized_input else 2, 0.5625, 2 * p.local_experts + 2),
    }[p.cutlass_variant]
    weights = len(set(choices)) * p.hidden_size * (columns + p.local_intermediate) * weight
    assert cost.bytes == weights + 4 * scales + p.num_tokens * (p.hidden_size * (token + 2) + 8 * p.top_k)
    assert sum(t.untyped_storage().nbytes() for t in cold.tensors(x)) <= cutlass_moe.footprint(p) + 4096


def stored(x, **changes):
    return x._replace(stored=x.stored._replace(**changes))


def scale(x, place, change):
    scales = list(x.stored.scales)
    scales[place] = change(scales[place])
    return stored(x, scales=tuple(scales))


@pytest.mark.parametrize("way", ["ep", "tp"])
def test_the_parts_of_all_gpus_add_up_to_the_whole(moe, way):
    whole = moe.inputs(PLAIN)
    parts = []
    for rank in range(2):
        p = replace(PLAIN, **{f"{way}_size": 2, f"{way}_rank": rank})
        x = moe.inputs(PLAIN)
        if way == "ep":
            experts = slice(4 * rank, 4 * rank + 4)
            x = stored(x, first=x.stored.first[experts], second=x.stored.second[experts])
        else:
            up, gate = x.stored.first.chunk(2, 1)
            columns = slice(32 * rank, 32 * rank + 32)
            first = torch.cat((up[:, columns], gate[:, columns]), 1)
            x = stored(x, first=first, second=x.stored.second[:, :, columns])
        parts.append(cutlass_moe.reference(p, x)[0])
    assert torch.allclose(sum(parts), cutlass_moe.reference(PLAIN, whole)[0], rtol=1e-4, atol=1e-5)


@given(st.sampled_from(_load.LOADS), st.integers(1, 8), st.integers(0, 99))
def test_a_load_is_what_it_is_called(load, top_k, seed):
    rand = torch.Generator().manual_seed(seed)
    experts, weights = _load.renormalised(_load.logits(load, 512, 64, top_k, rand), top_k)
    assert all(len(set(row)) == top_k for row in experts.tolist())
    assert torch.allclose(weights.sum(-1), torch.ones(512))
    counts = torch.bincount(experts.flatten(), minlength=64).sort(descending=True).values
    if load == "one":
        assert counts[:top_k].tolist() == [512] * top_k
    elif load == "uniform":
        assert counts[0] <= 512 * top_k / 64 * 3 + 12
    elif top_k == 1:
        assert counts[0] > 3 * counts[7]


def swapped_experts(x):
    return stored(x, first=x.stored.first.roll(1, 0))


def swapped_gate_and_up(x):
    return stored(x, first=torch.cat(x.stored.first.chunk(2, 1)[::-1], 1))


def another_experts_scale(x):
    return scale(x, 0 if len(x.stored.scales) == 4 else 2, lambda by_first: by_first.roll(1))


def dropped_scale(x):
    return scale(x, -2 if len(x.stored.scales) == 4 else -1, torch.ones_like)


def another_rows_blocks(x):
    return scale(x, 1, lambda first: first.view(torch.uint8).roll(1, 1).view(first.dtype))


def equal_weights(x):
    return x._replace(weights=torch.full_like(x.weights, 0.5))


def one_token_lost(x):
    weights = x.weights.clone()
    weights[7] = 0
    return x._replace(weights=weights)


def second_choice_lost(x):
    return x._replace(weights=x.weights * torch.tensor([1.0, 0.0]))


def empty_expert_forgotten(x):
    """Experts after the first that nobody chose are one off."""
    empty = min(set(range(8)) - set(x.selected.flatten().tolist()))
    return x._replace(selected=torch.where(x.selected > empty, x.selected - 1, x.selected))


FAULTS = (swapped_experts, swapped_gate_and_up, equal_weights, one_token_lost, second_choice_lost)


OF_SCALES = (another_experts_scale, dropped_scale)
PLANTED = [
    *(("base", fault) for fault in FAULTS),
    *(("fp8", fault) for fault in FAULTS + OF_SCALES),
    *(("nvfp4", fault) for fault in (*FAULTS, *OF_SCALES, another_rows_blocks)),
]


@pytest.mark.parametrize(("variant", "fault"), PLANTED)
def test_a_wrong_kernel_is_caught(moe, variant, fault):
    p = replace(PLAIN, cutlass_variant=variant)
    assert moe.rule(p, moe.launched(p, fault(moe.inputs(p))), moe.inputs(p))


def test_an_expert_that_nobody_chose_is_not_counted_in(moe):
    p = replace(PLAIN, num_tokens=3)
    seed = next(s for s in range(99) if 0 in set(range(7)) - set(moe.inputs(p, s).selected.flatten().tolist()))
    right = moe.inputs(p, seed)
    assert moe.rule(p, moe.launched(p, empty_expert_forgotten(moe.inputs(p, seed))), right)
    unchosen = moe.inputs(p, seed)
    unchosen.stored.first[0] = float("nan")
    assert moe.rule(p, moe.launched(p, unchosen), right) == ""


@pytest.mark.parametrize("value", [0.0, float("nan"), 1.02])
def test_a_wrong_output_is_caught(moe, value):
    for variant in ("base", "fp8", "nvfp4"):
        p = replace(PLAIN, cutlass_variant=variant)
        x = moe.inputs(p)
        out = moe.launched(p, x)
        out *= value
        assert moe.rule(p, out, x)


@pytest.fixture
def called(moe, monkeypatch):
    fused_moe = pytest.importorskip("flashinfer.fused_moe", exc_type=ImportError)

    def call(p, x):
        api = create_autospec(fused_moe.cutlass_fused_moe)
        with monkeypatch.context() as patch:
            patch.setattr("flashinfer.fused_moe.cutlass_fused_moe", api)
            moe.launched(p, x, "cutlass")
        return inspect.signature(api).bind(*api.call_args.args, **api.call_args.kwargs).arguments

    return call


def test_calls_fit_the_librarys_signature(moe, called):
    for shape in cutlass_moe.tiers["smoke"]():
        x = moe.inputs(shape.params)
        told = called(shape.params, x)
        assert told["output"] is x.out
        assert told["activation_type"].name == shape.params.activation_type
        assert told["token_selected_experts"].dtype == torch.int32
        assert told["token_final_scales"].dtype == torch.float32
        count = {"base": 0, "fp8": 4, "nvfp4": 6}[shape.params.cutlass_variant]
        assert len(told["quant_scales"] or ()) == count
        assert (told["input_sf"] is not None) == shape.params.quantized_input
        assert told["ep_rank"] == shape.params.ep_rank


def test_the_librarys_own_reference_agrees_on_the_arguments_we_pass(moe, called):
    """It knows no parts of experts, no scales and one activation."""
    templates = pytest.importorskip("flashinfer.trace.templates.moe", exc_type=ImportError)
    x = moe.inputs(PLAIN)
    theirs = templates.cutlass_fused_moe_trace.reference(**called(PLAIN, x))
    assert moe.rule(PLAIN, theirs.to(x.out.dtype), x) == ""


def test_nvfp4_is_passed_as_the_binding_reads_it(moe, called):
    """Sixteen values to an int64, four scales to an int32, in tiles of 128 x 4 by the formula of the byte's place."""
    p = replace(PLAIN, hidden_size=256, intermediate_size=128, cutlass_variant="nvfp4", quantized_input=True)
    x = moe.inputs(p)
    told = called(p, x)
    assert told["fc1_expert_weights"].dtype == torch.int64
    assert torch.equal(told["fc1_expert_weights"].view(torch.uint8), x.stored.first)
    assert told["quant_scales"][1].shape == (8, 256, 256 // 16 // 4)
    assert told["quant_scales"][4].shape == (8, 256, 128 // 16 // 4)
    assert {scales.dtype for scales in told["quant_scales"][1::3]} == {torch.int32}
    flat, linear = told["quant_scales"][1][5].view(torch.uint8).flatten(), x.stored.scales[1][5].view(torch.uint8)
    for row, block in ((0, 0), (1, 3), (37, 5), (130, 15), (255, 8)):
        tile = row // 128 * 4 + block // 4
        assert flat[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4] == linear[row, block]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"top_k": 9}, "top_k: 9 is more than the 8 experts"),
        ({"ep_size": 3}, "ep_size: 3 GPUs cannot share num_experts 8 evenly"),
        ({"tp_size": 5}, "tp_size: 5 GPUs cannot share intermediate_size 64 evenly"),
        ({"ep_size": 2, "ep_rank": 2}, "ep_rank: 2 is not one of 2 GPUs"),
        ({"quantized_input": True}, "quantized_input: is for cutlass_variant nvfp4, not base"),
        ({"cutlass_variant": "nvfp4", "hidden_size": 48}, "cutlass_variant: nvfp4 needs a hidden_size"),
        ({"cutlass_variant": "int4"}, "cutlass_variant: must be one of base, fp8, nvfp4"),
    ],
)
def test_what_cannot_be_is_an_error(change, sentence):
    with pytest.raises(ParamError, match=sentence):
        replace(PLAIN, **change)


def test_every_tier_is_of_distinct_cases():
    for tier in ("smoke", "default", "full"):
        ids = [shape.id for shape in cutlass_moe.tiers[tier]()]
        assert len(set(ids)) == len(ids) >= 9


def test_the_row_holds_the_load(pytester):
    flags = "--num_tokens 8 --hidden_size 32 --intermediate_size 32 --num_experts 8 --top_k 2 --expert_load one"
    case = f"--perf-case=--routine cutlass_fused_moe --backends torch {flags}"
    options = ["--perf-iters=2", "--benchmark-json=run.json", "--import-mode=importlib", "-p", "no:cacheprovider"]
    pytester.runpytest(case, *options).assert_outcomes(passed=1)
    row = json.loads((pytester.path / "run.json").read_text())["benchmarks"][0]["extra_info"]
    assert (row["active_experts"], row["largest_load"], row["expert_tokens"]) == (2, 8, 16)
    assert row["intermediate_bytes"] == 2 * 16 * 32 * 2
