"""cutlass_fused_moe: the reference against sums by hand, the calls against the library, the work, the loads."""

from dataclasses import replace

import pytest
import torch
from decoding import fp4
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from moe_layers import ACT, PLAIN, VARIANTS, by_experts, by_tiles, in_fp8, int4, near, plain, rounded

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe import _experts, _routing
from pytest_flashinfer_perf.routines.moe.cutlass import CutlassFusedMoe, cutlass_moe
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.strategies import params_of


def layer(p, x):
    """Tokens, both weights, the factors of their products, and what happens between, in double precision."""
    s, ones = x.stored, torch.ones(len(p.here))
    if p.cutlass_variant == "base":
        return s.x.double(), s.first.double(), s.second.double(), ones, ones, lambda act: act
    if p.cutlass_variant == "deepseek_fp8_block_scale":
        weights = (by_tiles(s.first, s.first_scales), by_tiles(s.second, s.second_scales))
        return s.x.double(), *weights, ones, ones, lambda act: act
    if p.cutlass_variant == "fp8":
        weights = (s.first.double(), s.second.double())
        return s.x.double(), *weights, s.by_first, s.by_second, lambda act: in_fp8(act * s.between)
    if p.cutlass_variant == "w4a8":
        weights = (int4(s.first, s.first_scales), int4(s.second, s.second_scales))
        return in_fp8(s.x.double() * s.unit), *weights, s.by_first, s.by_second, lambda act: in_fp8(act * s.between)
    tokens = fp4(s.x, s.x_blocks, 16) if p.quantized_input else rounded(s.x, s.unit)
    weights = (fp4(s.first, s.first_blocks, 16), fp4(s.second, s.second_blocks, 16))
    return tokens, *weights, s.by_first, s.by_second, lambda act: rounded(act, s.between)


def by_hand(p, x):
    made, choices = layer(p, x), zip(x.selected.tolist(), x.weights.double(), strict=True)
    of_tokens = [by_experts(p, made, token, zip(c, w, strict=True)) for token, (c, w) in enumerate(choices)]
    return torch.stack(of_tokens)


@few(40)
@given(params_of(CutlassFusedMoe))
def test_the_reference_is_the_sum_over_each_tokens_experts(moe, p):
    x = moe.inputs(p)
    tipped_over = {"fp8": 0.02, "w4a8": 0.02, "nvfp4": 0.15}.get(p.cutlass_variant, 1e-4)
    assert near(cutlass_moe.reference(p, x)[0].double(), by_hand(p, x), tipped_over)


@few(40)
@given(params_of(CutlassFusedMoe))
def test_work_is_that_of_the_experts_here(moe, p):
    x = moe.inputs(p)
    choices = [choice for choice in x.selected.flatten().tolist() if choice in p.here]
    facts, cost = cutlass_moe.facts(p, x), cutlass_moe.cost(p, x)
    assert facts["expert_tokens"] == len(choices)
    assert facts["active_experts"] == len(set(choices))
    assert facts["largest_load"] == max((choices.count(choice) for choice in choices), default=0)
    columns = p.local_intermediate * (2 if p.activation_type in ACT else 1)
    assert cost.flops == 2 * len(choices) * p.hidden_size * (columns + p.local_intermediate)
    token, weight, scales = {
        "base": (2, 2, 0),
        "fp8": (1, 1, 2 * len(p.here) + 2),
        "nvfp4": (0.5625 if p.quantized_input else 2, 0.5625, 2 * len(p.here) + 2),
        "deepseek_fp8_block_scale": (2, 1, 0),
        "w4a8": (2, 0.5 + 2 / 128, 2 * len(p.here) + (p.hidden_size + p.local_intermediate) / 2),
    }[p.cutlass_variant]
    tiles = [-(-size // 128) for size in (p.hidden_size, columns, p.local_intermediate)]
    of_tiles = 4 * tiles[0] * (tiles[1] + tiles[2]) * (p.cutlass_variant == "deepseek_fp8_block_scale")
    weights = len(set(choices)) * (p.hidden_size * (columns + p.local_intermediate) * weight + of_tiles)
    assert cost.bytes == weights + 4 * scales + p.num_tokens * (p.hidden_size * (token + 2) + 8 * p.top_k)


@given(st.sampled_from(_routing.LOADS), st.integers(1, 8), st.integers(0, 99))
def test_a_load_is_what_it_is_called(load, top_k, seed):
    rand = torch.Generator().manual_seed(seed)
    popular = _routing.popularity(load, 64, range(5, 5 + top_k), rand)
    experts = _routing.logits(popular, 512, rand).topk(top_k).indices
    counts = torch.bincount(experts.flatten(), minlength=64)
    if load == "one":
        assert counts[5 : 5 + top_k].tolist() == [512] * top_k
    most = counts.sort(descending=True).values
    if load == "uniform":
        assert most[0] <= 512 * top_k / 64 * 3 + 12
    elif load == "zipf" and top_k == 1:
        assert most[0] > 3 * most[7]


@pytest.mark.parametrize("name", _experts.ACTIVATIONS)
def test_an_activation_is_flashinfers(moe, name):
    """Each name is one of the library's, gated where the library says so."""
    enums = pytest.importorskip("flashinfer.tllm_enums", exc_type=ImportError)
    assert enums.is_gated_activation(enums.ActivationType[name]) == (name in _experts.GATED)
    p = replace(PLAIN, activation_type=name, num_tokens=3)
    x = moe.inputs(p)
    assert torch.allclose(cutlass_moe.reference(p, x)[0].double(), by_hand(p, x), rtol=1e-4, atol=1e-5)


def places(rows, columns):
    """Where FlashInfer's kernel puts each two bytes of an expert, by its formula: rows 8 apart lie together."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns // 4), indexing="ij")
    lane, upper = column % 16, row % 16 // 8
    return (row // 16 * 16 + row % 8 + lane % 8 // 4 * 8) * (columns // 4) + (
        column - lane + lane // 8 * 8 + lane % 4 * 2 + upper
    )


def interleaved(weight, quant_type):
    """In place of the kernel, which is compiled for a GPU alone."""
    assert (weight.dtype, quant_type) == (torch.uint8, "int4")
    made, place = torch.empty_like(weight), places(weight.shape[1], weight.shape[2] * 2)
    made.view(torch.int16).flatten(1)[:, place] = weight.view(torch.int16)
    return made


@pytest.fixture
def called(moe, monkeypatch):
    pytest.importorskip("flashinfer.fused_moe", exc_type=ImportError)
    monkeypatch.setattr("flashinfer.fused_moe.interleave_moe_weights_for_sm90_mixed_gemm", interleaved)
    return lambda p, x: moe.passed(p, x, "cutlass").arguments


def test_calls_fit_the_librarys_signature(moe, called):
    for shape in cutlass_moe.tiers["smoke"]():
        x = moe.inputs(shape.params)
        told = called(shape.params, x)
        assert told["output"] is x.out
        assert told["enable_pdl"] is False
        assert told["activation_type"].name == shape.params.activation_type
        assert told["token_selected_experts"].dtype == torch.int32
        assert told["token_final_scales"].dtype == torch.float32
        count = dict(zip(VARIANTS, (0, 4, 6, 2, 8), strict=True))[shape.params.cutlass_variant]
        assert told.get("use_deepseek_fp8_block_scale", False) == (count == 2)
        assert told.get("use_packed_weights", False) == told.get("use_w4_group_scaling", False) == (count == 8)
        assert len(told["quant_scales"] or ()) == count
        assert (told.get("input_sf") is not None) == shape.params.quantized_input
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
    flat, linear = told["quant_scales"][1][5].view(torch.uint8).flatten(), x.stored.first_blocks[5].view(torch.uint8)
    for row, block in ((0, 0), (1, 3), (37, 5), (130, 15), (255, 8)):
        tile = row // 128 * 4 + block // 4
        assert flat[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4] == linear[row, block]


@pytest.mark.parametrize("activation", ["Swiglu", "Relu2"])
def test_w4a8_is_passed_as_the_binding_reads_it(moe, called, activation):
    """What the arguments mean, taken back from the kernel's order, gives the reference by the kernel's formula."""
    p = replace(plain("w4a8"), activation_type=activation, ep_size=2, ep_rank=1)
    x = moe.inputs(p)
    told = called(p, x)
    *scales, of_x, of_act, zeros, more_zeros, by_first, by_second = told["quant_scales"]
    assert told["input"].dtype == of_x.dtype == of_act.dtype == torch.bfloat16
    assert (of_x.shape, of_act.shape, by_first.shape, by_first.dtype) == ((256,), (128,), (4,), torch.float32)
    assert zeros.numel() == more_zeros.numel() == 0
    meant = {"x": told["input"], "unit": of_x, "between": of_act, "by_first": by_first, "by_second": by_second}
    for name, argument, folded in zip(("first", "second"), ("fc1", "fc2"), scales, strict=True):
        weights = told[f"{argument}_expert_weights"]
        experts, rows, pairs = weights.shape
        halves = weights.view(torch.int16).flatten(1)[:, places(rows, pairs * 2)]
        assert folded.shape == (experts, rows // 64, pairs // 64, 8, 8)
        # A row of 64 is at its remainder by 8, and at its quotient within that.
        linear = folded.permute(0, 1, 4, 3, 2).reshape(experts, rows, pairs // 64)
        meant |= {name: halves.contiguous(), f"{name}_scales": linear}
    known = x._replace(stored=x.stored._replace(**meant))
    assert moe.rule(p, by_hand(p, known).to(x.out.dtype), x) == ""


@given(st.integers(0, 2**32), st.sampled_from([1e-3, 1.0, 50.0]))
def test_int4_is_the_nearest_of_its_sixteen_numbers(seed, size):
    x = size * torch.randn(3, 256, generator=torch.Generator().manual_seed(seed))
    stored = _narrow.int4(x)
    assert torch.equal(stored.dequantised().double(), int4(stored.values, stored.scales))
    steps = stored.scales.double().repeat_interleave(128, -1)
    assert bool(((stored.dequantised() - x).abs() <= 0.53 * steps).all())  # 7 steps are the largest, before rounding


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"top_k": 9}, "top_k: 9 is more than the 8 experts"),
        ({"ep_size": 3}, "ep_size: 3 GPUs cannot share num_experts 8 evenly"),
        ({"tp_size": 5}, "tp_size: 5 GPUs cannot share intermediate_size 64 evenly"),
        ({"ep_size": 2, "ep_rank": 2}, "ep_rank: 2 is not one of 2 GPUs"),
        ({"quantized_input": True}, "quantized_input: is for cutlass_variant nvfp4, not base"),
        ({"cutlass_variant": "nvfp4", "hidden_size": 48}, "cutlass_variant: nvfp4 needs a hidden_size"),
        ({"cutlass_variant": "w4a8"}, "cutlass_variant: w4a8 needs a hidden_size, .* in multiples of 128"),
        ({"cutlass_variant": "int4"}, "cutlass_variant: must be one of base, fp8, nvfp4, deepseek_fp8_block_scale"),
    ],
)
def test_what_cannot_be_is_an_error(change, sentence):
    with pytest.raises(ParamError, match=sentence):
        replace(PLAIN, **change)


def test_the_row_holds_the_load(session):
    flags = "--num_tokens 8 --hidden_size 32 --intermediate_size 32 --num_experts 8 --top_k 2 --expert_load one"
    done = session(f"--perf-case=--routine cutlass_fused_moe --backends torch {flags}", "--import-mode=importlib")
    [row] = [row["extra_info"] for row in done.rows.values()]
    assert (row["active_experts"], row["largest_load"], row["expert_tokens"]) == (2, 8, 16)
    assert row["intermediate_bytes"] == 2 * 16 * 32 * 2
