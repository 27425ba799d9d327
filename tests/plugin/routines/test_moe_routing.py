"""How tokens choose experts: each method against plain Python, answers worked out by hand, and what cannot be."""

from dataclasses import replace

import pytest
import torch
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from trtllm_layers import by_hand

from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.moe import _routing, _trtllm
from pytest_flashinfer_perf.routines.moe.fp4_block import TrtllmFp4BlockScaleMoe
from pytest_flashinfer_perf.routines.moe.trtllm_fp8 import (
    TrtllmFp8BlockScaleMoe,
    TrtllmFp8PerTensorScaleMoe,
    fp8_tensor,
)
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.strategies import params_of

SIZES = {"num_tokens": 1, "hidden_size": 128, "intermediate_size": 128, "num_experts": 8, "top_k": 2}
PLAIN = TrtllmFp8PerTensorScaleMoe(**SIZES, routing_method="renormalize")
GROUPED = TrtllmFp8PerTensorScaleMoe(**SIZES, n_group=4, topk_group=2)


@few(60)
@given(params_of(TrtllmFp8PerTensorScaleMoe), st.integers(0, 99))
def test_every_method_is_as_it_is_described(p, seed):
    x = fp8_tensor.inputs(p, torch.Generator().manual_seed(seed), torch.device("cpu"))
    routed = _routing.routed(p, x.logits, x.bias)
    for token, logits in enumerate(x.logits.float().tolist()):
        wanted = by_hand(p, logits, None if x.bias is None else x.bias.tolist())
        got = dict(zip(routed.experts[token].tolist(), routed.weights[token].tolist(), strict=True))
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def routed(p, *logits, bias=None):
    made = _routing.routed(p, torch.tensor([logits]), None if bias is None else torch.tensor(bias))
    return {e: round(w, 4) for e, w in zip(made.experts[0].tolist(), made.weights[0].tolist(), strict=True)}


LOGITS = (0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 1.5, -0.5)


@pytest.mark.parametrize(
    ("method", "top_k", "wanted"),
    [
        ("renormalize", 2, {3: 0.6225, 6: 0.3775}),  # e^2 / (e^2 + e^1.5)
        ("renormalize_naive", 2, {3: 0.6225, 6: 0.3775}),
        ("topk", 2, {3: 2.0, 6: 1.5}),
        ("deepseek_v3", 2, {3: 1.2965, 6: 1.2035}),  # 2.5 x .8808 / (.8808 + .8176)
        ("llama4", 1, {3: 0.8808}),
    ],
)
def test_weights_worked_out_by_hand(method, top_k, wanted):
    assert routed(replace(PLAIN, routing_method=method, top_k=top_k), *LOGITS) == wanted


def test_groups_by_hand():
    """Pairs score 1.23, 1.15, 0.74 and 1.20, as sigmoids: the second pair is left out, and its best expert, the best
    of all, with it. A bias of 0.1 on it brings it back; the weights are those without bias.
    """
    assert routed(GROUPED, *LOGITS) == {1: 1.1802, 6: 1.3198}
    assert routed(GROUPED, *LOGITS, bias=[0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0]) == {3: 1.3661, 1: 1.1339}


def test_a_bias_and_a_factor_mean_nothing_to_other_methods():
    for method in ("renormalize", "renormalize_naive", "topk"):
        p = replace(PLAIN, routing_method=method)
        bias = [9.0, *[0.0] * 7]
        assert routed(replace(p, routed_scaling_factor=9.0), *LOGITS, bias=bias) == routed(p, *LOGITS)


def test_a_margin_is_what_the_choice_hangs_on():
    """0.5 between 1.5 and 1.0; the groups' 0.045 between 1.2 and 1.15, as sigmoids, below the experts' 0.087."""
    assert _routing.routed(PLAIN, torch.tensor([LOGITS]), None).margin.item() == pytest.approx(0.5)
    assert _routing.routed(GROUPED, torch.tensor([LOGITS]), None).margin.item() == pytest.approx(0.0454, abs=1e-4)


@few(60)
@given(params_of(TrtllmFp8PerTensorScaleMoe), st.sampled_from([torch.bfloat16, torch.float32]), st.integers(0, 9))
def test_no_choice_hangs_on_rounding(p, dtype, seed):
    x = _trtllm.inputs(replace(p, num_tokens=200), None, dtype, torch.Generator().manual_seed(seed))
    assert bool((_routing.routed(p, x.logits, x.bias).margin >= _trtllm.CLEAR).all())


@pytest.mark.parametrize(
    "p", [PLAIN, GROUPED, replace(GROUPED, n_group=2, topk_group=1, local_expert_offset=5, local_num_experts=2)]
)
def test_a_load_on_few_experts_is_on_those_here(p):
    p = replace(p, expert_load="one", num_tokens=64, local_num_experts=2)
    x = fp8_tensor.inputs(p, torch.Generator().manual_seed(0), torch.device("cpu"))
    chosen = _trtllm.choices(p, x).selected
    assert {tuple(sorted(row)) for row in chosen.tolist()} == {tuple(p.favourites)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"routing_method": "llama4"}, "top_k: llama4 chooses one expert: --top_k 1, not 2"),
        ({"routing_method": "topk", "n_group": 2, "topk_group": 1}, "n_group: only deepseek_v3 has groups: leave it"),
        ({"n_group": 2}, "topk_group: --n_group and --topk_group go together"),
        ({"n_group": 3, "topk_group": 1}, "n_group: 8 experts cannot be in 3 groups of one size"),
        ({"n_group": 2, "topk_group": 4}, "topk_group: 4 groups cannot be chosen of 2"),
        ({"n_group": 8, "topk_group": 2}, "n_group: a group's score is that of its two best experts"),
        ({"n_group": 4, "topk_group": 1, "top_k": 3}, "top_k: 3 is more than the 2 experts of chosen groups"),
        ({"top_k": 9}, "top_k: 9 is more than the 8 experts there are"),
        ({"routing_method": "softmax"}, "routing_method: must be one of renormalize, deepseek_v3, llama4"),
        ({"local_expert_offset": 4}, "local_num_experts: 11 is the last expert here, but there are only 8"),
        ({"weight_layout": 3}, "weight_layout: must be 0, 1 or 2, got 3"),
        ({"use_routing_scales_on_input": True}, "is for --routing_method llama4, not deepseek_v3"),
    ],
)
def test_what_no_kernel_could_do_is_an_error_before_anything_is_drawn(change, sentence):
    with pytest.raises(ParamError, match=sentence):
        TrtllmFp8PerTensorScaleMoe(**{**SIZES, **change})


LIMITS = [
    ({"hidden_size": 64}, "needs a hidden_size and an intermediate_size in multiples of 128"),
    ({"num_experts": 6}, "needs a num_experts in multiples of 4"),
    ({"num_experts": 8, "top_k": 8}, "needs more experts than a token chooses: --top_k below 8"),
    ({"num_experts": 128, "top_k": 9}, "has deepseek_v3 up to --top_k 8"),
    ({"num_experts": 128, "top_k": 9, "n_group": 8, "topk_group": 4}, "up to --top_k 8 of 128 experts"),
    ({"num_experts": 64, "n_group": 8, "topk_group": 1, "top_k": 8}, "needs more experts in the chosen groups"),
    ({"num_experts": 64, "n_group": 8, "topk_group": 5}, "has up to --n_group 8 and --topk_group 4"),
    ({"num_experts": 128, "n_group": 2, "topk_group": 1}, "has groups of up to 32 experts"),
    ({"num_experts": 128, "top_k": 33, "routing_method": "topk"}, "has topk up to --top_k 32"),
    ({"num_experts": 256, "top_k": 1, "routing_method": "llama4"}, "has llama4 up to 128 experts"),
    ({"weight_layout": 2}, "takes weights in MajorK alone: --weight_layout 0"),
    ({"activation_type": "Situ"}, "has Swiglu, Geglu, Relu2, Identity"),
]


@pytest.mark.parametrize(("change", "sentence"), LIMITS)
def test_what_the_kernels_cannot_do_is_a_reason(blackwell, change, sentence):
    pytest.importorskip("flashinfer", exc_type=ImportError)
    p = TrtllmFp8PerTensorScaleMoe(**{**SIZES, **change})
    assert sentence in "; ".join(fp8_tensor.backends["trtllm"].limits(p, "trtllm", blackwell))


@pytest.mark.parametrize("params", [TrtllmFp4BlockScaleMoe, TrtllmFp8BlockScaleMoe, TrtllmFp8PerTensorScaleMoe])
def test_a_line_with_upstreams_own_defaults_can_run(blackwell, params):
    """It defaults to deepseek_v3 without groups, which its benchmark then refuses."""
    pytest.importorskip("flashinfer", exc_type=ImportError)
    routine = next(r for r in all_routines().values() if r.params is params)
    sizes = "--num_tokens 1024 --hidden_size 1024 --intermediate_size 1024 --num_experts 128 --top_k 8"
    p = flags.read(params, flags.split(sizes))
    assert list(routine.backends["trtllm"].limits(p, "trtllm", blackwell)) == []


def test_flags_are_read_as_upstream_spells_them_now_and_before():
    """What only its neighbours have is taken, and says nothing."""
    line = f"--routine {fp8_tensor.name} --backends torch --tile_tokens_dim 8 --tp_size 2 --quantized_input "
    line += "--num_tokens 1 --hidden_size 128 --intermediate_size 128 --num_experts 8 --top_k 2"
    for words in ("--gated_act geglu", "--activation-type Geglu", "--activation_type geglu"):
        [case] = cases.parse(flags.split(f"{line} {words}"), all_routines()).cases()
        assert case.params == TrtllmFp8PerTensorScaleMoe(**SIZES, activation_type="Geglu")
        assert flags.write(case.params)[-2:] == ["--activation-type", "Geglu"]


def test_the_id_has_the_routing_method_as_its_flag_spells_it():
    assert GROUPED.slug() == "t1-h128-i128-e8-k2-deepseek_v3-g4-of2"
    assert PLAIN.slug({"routing_method": "renormalize", "num_tokens": 1}) == "h128-i128-e8-k2-renormalize"
