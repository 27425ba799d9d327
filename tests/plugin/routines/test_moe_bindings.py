"""What the trtllm MoE backends and mono_moe are called with: signatures, layouts undone by inverses written here, and
FlashInfer's own references on these very arguments, where they are right.
"""

import inspect
from dataclasses import replace

import pytest
import torch
from decoding import fp4, in_tiles, unshuffled
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from moe_layers import ACT, UNGATED, near, raw, rounded
from trtllm_layers import ROUTINES, by_hand, run_of

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.routines.moe.fp4_block import TrtllmFp4BlockScaleMoe, fp4_block
from pytest_flashinfer_perf.routines.moe.trtllm_fp8 import (
    MONO,
    TrtllmFp8BlockScaleMoe,
    TrtllmFp8PerTensorScaleMoe,
    fp8_block,
    fp8_tensor,
)

SMALL = {"num_tokens": 5, "hidden_size": 256, "intermediate_size": 128, "num_experts": 8, "top_k": 2}


@pytest.fixture(scope="session")
def called():
    fused_moe = pytest.importorskip("flashinfer.fused_moe", exc_type=ImportError)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_moe, "alloc_scratchpad", lambda device: torch.zeros(1, device=device))
        yield lambda p, x, backend="trtllm": run_of(p).passed(p, x, backend).arguments


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_calls_fit_the_librarys_signature(called, routine):
    enums = pytest.importorskip("flashinfer.tllm_enums", exc_type=ImportError)
    for p in (shape.params for shape in routine.tiers["smoke"]()):
        x = run_of(p).inputs(p)
        told = called(p, x)
        assert told["output"] is x.out
        assert told["routing_logits"] is x.logits
        assert told["enable_pdl"] is False
        method = enums.RoutingMethodType(told["routing_method_type"]).name
        assert method.lower() == p.routing_method.replace("_", "")
        assert enums.ActivationType(told.get("activation_type", 3)).name == p.activation_type
        assert (told["routing_bias"] is not None) == p.use_routing_bias
        assert told["gemm1_weights"].shape[0] == told["local_num_experts"] == len(p.here)
        deepseek = p.routing_method == "deepseek_v3"
        assert (told["n_group"], told["topk_group"]) == ((p.groups, p.kept_groups) if deepseek else (None, None))
        wide = routine is fp8_tensor and p.routing_method != "llama4"
        assert x.logits.dtype == (torch.float32 if deepseek or wide else torch.bfloat16)


def unpaired(rows):
    return torch.cat((rows[:, 0::2], rows[:, 1::2]), 1)


def untiled(tiles):
    return torch.stack([in_tiles(expert, *expert.shape) for expert in tiles])


def first_rows(p, rows, block=32):
    rows = unshuffled(raw(rows), block)
    return unpaired(rows) if p.activation_type in ACT else rows


@pytest.mark.parametrize("layout", [0, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_blocks_are_the_weights_in_another_order(called, layout, shuffled):
    p = TrtllmFp8BlockScaleMoe(**SMALL, weight_layout=layout, use_shuffled_weight=shuffled)
    x = run_of(p).inputs(p)
    told = called(p, x)
    for name, wanted in (("gemm1_weights", x.stored.first), ("gemm2_weights", x.stored.second)):
        rows = raw(told[name])
        if layout == 2:
            assert rows.shape == (8, wanted.shape[2] // 128, wanted.shape[1], 128)
            rows = torch.cat(list(rows.unbind(1)), -1)
        assert told[name].dtype == torch.float8_e4m3fn
        assert torch.equal(unshuffled(rows, 16) if shuffled else rows, raw(wanted))
    assert torch.equal(told["hidden_states_scale"], x.stored.x_scales.T)
    assert told["hidden_states_scale"].is_contiguous()
    assert told["gemm1_weights_scale"] is x.stored.first_scales
    assert (told["use_shuffled_weight"], told["weight_layout"]) == (shuffled, layout)


def decoded(p, told):
    """Tokens and weights that the FP4 arguments mean, in units of their scalars."""
    block = 16 if p.fp4_mode == "nvfp4" else 32
    scales = [raw(told[f"gemm{n}_weights_scale"]) for n in (1, 2)]
    scales = [first_rows(p, untiled(scales[0])), unshuffled(untiled(scales[1]), 32)]
    scales = [s if block == 32 else s.view(torch.float8_e4m3fn) for s in scales]
    values = (first_rows(p, told["gemm1_weights"]), unshuffled(told["gemm2_weights"], 32))
    tokens, of_x = told["hidden_states"], told["hidden_states_scale"]
    if p.fp4_mode == "nvfp4":
        tokens = fp4(tokens, of_x, 16)
    elif of_x is not None:
        tokens = tokens.double() * torch.exp2(raw(of_x).double() - 127).repeat_interleave(32, -1)
    return tokens.double(), *(fp4(v, s, block) for v, s in zip(values, scales, strict=True))


def by_formula(p, told, layer, scalars, narrow):
    """As the epilogue's formula has it: the gate by one scalar, what comes of it by another, the answer by a third."""
    tokens, first, second = layer
    to_between, by_gate, by_second = ([1.0] * 8 if s is None else s.tolist() for s in scalars)
    out = torch.zeros(p.num_tokens, p.hidden_size, dtype=torch.float64)
    for token, logits in enumerate(told["routing_logits"].tolist()):
        for expert, weight in by_hand(p, logits, None).items():
            on_input = told.get("use_routing_scales_on_input", False)
            rows = first[expert] @ tokens[token] * (weight if on_input else 1)
            half = len(rows) // 2
            if p.activation_type in ACT:
                act = ACT[p.activation_type](rows[:half], rows[half:] * by_gate[expert])
            else:
                act = UNGATED[p.activation_type](rows * by_gate[expert])
            answer = second[expert] @ narrow(act * to_between[expert]).double() * by_second[expert]
            out[token] += answer * (1 if on_input else weight)
    return out


@pytest.mark.parametrize("activation", ["Swiglu", "Geglu", "Relu2", "Identity"])
@pytest.mark.parametrize("mode", ["nvfp4", "mxfp4_mxfp8", "mxfp4_bf16"])
def test_fp4_arguments_give_the_reference_by_the_kernels_formula(called, mode, activation):
    p = TrtllmFp4BlockScaleMoe(**SMALL, routing_method="renormalize", fp4_mode=mode, activation_type=activation)
    x = run_of(p).inputs(p)
    told = called(p, x)
    scalars = [told[f"output{name}"] for name in ("1_scale_scalar", "1_scale_gate_scalar", "2_scale_scalar")]
    narrow = (lambda act: rounded(act, torch.ones(()))) if mode == "nvfp4" else (lambda act: act)
    got = by_formula(p, told, decoded(p, told), scalars, narrow)
    assert near(got, fp4_block.reference(p, x)[0].double(), 0.2 if mode == "nvfp4" else 1e-4, 1e-3)


@pytest.mark.parametrize("activation", ["Swiglu", "Geglu", "Relu2", "Identity"])
@pytest.mark.parametrize("on_input", [False, True])
def test_fp8_arguments_give_the_reference_by_the_kernels_formula(called, activation, on_input):
    method = {"routing_method": "llama4", "top_k": 1} if on_input else {"routing_method": "topk"}
    p = TrtllmFp8PerTensorScaleMoe(
        **{**SMALL, **method}, activation_type=activation, use_routing_scales_on_input=on_input
    )
    x = run_of(p).inputs(p)
    told = called(p, x)
    first = first_rows(p, told["gemm1_weights"]).view(torch.float8_e4m3fn)
    second = unshuffled(raw(told["gemm2_weights"]), 32).view(torch.float8_e4m3fn)
    scalars = [told[f"output{name}"] for name in ("1_scales_scalar", "1_scales_gate_scalar", "2_scales_scalar")]
    assert {(s.dtype, s.shape) for s in scalars} == {(torch.float32, (8,))}
    narrow = lambda act: act.float().clamp(-448, 448).to(torch.float8_e4m3fn)  # noqa: E731
    layer = (told["hidden_states"].double(), first.double(), second.double())
    got = by_formula(p, told, layer, scalars, narrow)
    assert near(got, fp8_tensor.reference(p, x)[0].double(), 0.02, 1e-3)


RIGHT = st.sampled_from(
    [
        {"routing_method": "renormalize", "top_k": 1},
        {"routing_method": "renormalize", "top_k": 3},
        {"routing_method": "renormalize_naive", "top_k": 2},
        {"routing_method": "llama4", "top_k": 1},
        *({"n_group": 4, "topk_group": kept, "use_routing_bias": True, "top_k": 3} for kept in (2, 3)),
    ]
).flatmap(
    lambda method: st.fixed_dictionaries(
        {
            **{name: st.just(value) for name, value in method.items()},
            "num_tokens": st.integers(1, 9),
            "hidden_size": st.sampled_from([128, 256]),
            "intermediate_size": st.sampled_from([128, 256]),
            "num_experts": st.sampled_from([8, 16]),
            "local_num_experts": st.sampled_from([4, None]),
            "routed_scaling_factor": st.just(2.5 if "n_group" in method else 1.0),
        }
    )
)


def theirs(name, told):
    templates = pytest.importorskip("flashinfer.trace.templates.moe", exc_type=ImportError)
    reference = getattr(templates, f"{name}_trace_dispatch")(**told).reference
    known = inspect.signature(reference).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    return reference(**{name: value for name, value in told.items() if takes_any or name in known})


def agrees(p, got, x, tolerance):
    return check.compare(got, ROUTINES[type(p)].reference(p, x)[0], tolerance).rule == ""


@few(25)
@given(RIGHT, st.sampled_from([0, 4]))
def test_the_librarys_fp8_reference_agrees_on_the_arguments_we_pass(called, changes, first):
    p = TrtllmFp8BlockScaleMoe(**changes, local_expert_offset=first if changes["local_num_experts"] else 0)
    x = run_of(p).inputs(p)
    got = theirs("trtllm_fp8_block_scale_moe", called(p, x))
    assert agrees(p, got, x, check.Tolerance(1e-2, 1e-2, 5e-3))


def test_mono_moe_is_given_the_gate_first_in_its_own_order(called):
    """Of each 64 rows of gate and of up, 8 in turn: back to [gate, up], by the docstring's formula of a row's place."""
    p = TrtllmFp8BlockScaleMoe(**SMALL, routing_method="renormalize")
    x = run_of(p).inputs(p)
    told = called(p, x, "mono_moe")
    up = raw(told["expert_weights_up"])
    gate_first = torch.empty_like(up)
    for row in range(128):
        block, group, warp, within = row // 64, row % 64 // 32, row % 32 // 8, row % 8
        place = 128 * block + 64 * group + 16 * warp + within
        gate_first[:, row], gate_first[:, 128 + row] = up[:, place], up[:, place + 8]
    wanted = raw(x.stored.first)
    assert torch.equal(gate_first, torch.cat((wanted[:, 128:], wanted[:, :128]), 1))
    scales = x.stored.first_scales
    assert torch.equal(told["expert_scales_up"], torch.cat((scales[:, 1:], scales[:, :1]), 1))
    assert torch.equal(told["activations_in"].double(), x.stored.tokens().double())
    assert told["activations_in"].dtype == told["router_logits"].dtype == torch.bfloat16
    assert (told["scoring_func"], told["renormalize"], told["interleave_up"]) == ("softmax", True, False)


MONO_LIMITS = [
    ({"num_tokens": 9}, "takes up to 8 tokens"),
    ({"hidden_size": 4096}, "is made for num_experts 256, hidden_size 2048, intermediate_size 512 on one GPU"),
    ({"local_num_experts": 128}, "on one GPU"),
    ({"routing_method": "deepseek_v3"}, "routes as renormalize, renormalize_naive, llama4, not deepseek_v3"),
    ({"activation_type": "Geglu"}, "has Swiglu alone"),
    ({"enable_pdl": True}, "is one kernel: leave out --enable_pdl"),
]


@pytest.mark.parametrize(("change", "sentence"), MONO_LIMITS)
def test_what_mono_moe_cannot_do_is_a_reason(hopper, change, sentence):
    p = TrtllmFp8BlockScaleMoe(num_tokens=8, top_k=8, routing_method="renormalize", **MONO)
    limits = fp8_block.backends["mono_moe"].limits
    assert list(limits(p, "mono_moe", hopper)) == []
    assert sentence in "; ".join(limits(replace(p, **change), "mono_moe", hopper))
