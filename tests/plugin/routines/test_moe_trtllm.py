"""The trtllm MoE routines without a GPU: the reference token by token, work, memory, parts of a layer."""

import itertools
import sys
from dataclasses import replace

import pytest
import torch
from decoding import fp4
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from moe_layers import ACT, by_experts, by_tiles, near, rounded
from torch.profiler import ProfilerActivity, profile
from trtllm_layers import KINDS, PLAIN, ROUTINES, by_hand, run_of

from pytest_flashinfer_perf.engine import cold
from pytest_flashinfer_perf.routines.moe import _trtllm
from pytest_flashinfer_perf.routines.moe.trtllm_fp8 import TrtllmFp8BlockScaleMoe, TrtllmFp8PerTensorScaleMoe
from pytest_flashinfer_perf.spec import ParamError
from pytest_flashinfer_perf.strategies import params_of

drawn = st.one_of(*map(params_of, ROUTINES))


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


@few(40)
@given(drawn)
def test_the_reference_is_the_sum_over_each_tokens_experts(p):
    x = run_of(p).inputs(p)
    made, bias = layer(p, x.stored), None if x.bias is None else x.bias.tolist()
    choices = [by_hand(p, logits, bias).items() for logits in x.logits.tolist()]
    tokens = [by_experts(p, made, token, c, on_input=p.weighs_input) for token, c in enumerate(choices)]
    tipped_over = {"nvfp4": 0.15, "fp8": 0.02}.get(getattr(p, "fp4_mode", "fp8"), 1e-4)
    assert near(ROUTINES[type(p)].reference(p, x)[0].double(), torch.stack(tokens), tipped_over)


@few(40)
@given(drawn)
def test_work_is_that_of_the_experts_here(p):
    x, routine = run_of(p).inputs(p), ROUTINES[type(p)]
    tokens = [by_hand(p, logits, None if x.bias is None else x.bias.tolist()) for logits in x.logits.float().tolist()]
    choices = [expert for chosen in tokens for expert in chosen if expert in p.here]
    facts, cost = routine.facts(p, x), routine.cost(p, x)
    assert (facts["expert_tokens"], facts["active_experts"]) == (len(choices), len(set(choices)))
    assert facts["largest_load"] == max((choices.count(choice) for choice in choices), default=0)
    columns = p.intermediate_size * (2 if p.activation_type in ACT else 1)
    assert cost.flops == 2 * len(choices) * p.hidden_size * (columns + p.intermediate_size)
    of_experts = sum(t.nbytes for t in cold.tensors(x.stored) if t.dim() == 3)
    assert cost.bytes == sum(t.nbytes for t in cold.tensors(x)) - of_experts * (1 - len(set(choices)) / len(p.here))


def peak_memory(call):
    """Bytes that torch has allocated at once, at most."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    sizes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    del kept
    return max(itertools.accumulate(sizes))


SHUFFLED = {"use_shuffled_weight": True}
ARRANGED = [
    *KINDS.values(),
    *(replace(PLAIN[TrtllmFp8BlockScaleMoe], **SHUFFLED, weight_layout=layout) for layout in (0, 2)),
]


@pytest.mark.parametrize("p", ARRANGED, ids=lambda p: f"{type(p).__name__}-{p.slug()}")
def test_weights_are_never_there_but_as_they_are_stored_and_as_they_are_passed(p):
    p = replace(p, num_tokens=4, hidden_size=256, intermediate_size=256, num_experts=96)
    routine, module = ROUTINES[type(p)], sys.modules[type(p).__module__]
    as_passed = module._tensors_as_passed if type(p) is TrtllmFp8PerTensorScaleMoe else module._as_passed

    def prepared():
        x = routine.inputs(p, torch.Generator().manual_seed(1), torch.device("cpu"))
        return x, routine.reference(p, x), as_passed(p, x.stored)

    assert 0.6 * routine.footprint(p) <= peak_memory(prepared) <= routine.footprint(p)


def test_a_choice_of_experts_that_stays_unclear_is_refused(monkeypatch):
    monkeypatch.setattr(_trtllm, "CLEAR", float("inf"))
    with pytest.raises(ParamError, match=r"rounding decides the experts of \d+ tokens, after 100 draws"):
        _trtllm.inputs(KINDS["nvfp4"], None, torch.float32, torch.Generator())
