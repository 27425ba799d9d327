"""Templates by hand: their references against others that are written in another way, and each case to its end."""

import pytest
import torch
from derived_cases import case, inputs
from flashinfer.trace.templates.gdn import gated_delta_rule_decode_trace, gdn_mtp_trace, gdn_prefill_trace
from flashinfer.trace.templates.mamba import selective_state_update_trace
from planted_faults import missed
from torch.nn.functional import normalize

from pytest_flashinfer_perf.extensions.apis import by_hand
from pytest_flashinfer_perf.extensions.apis.call_inputs import FirstCall

GDN = "--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads 4 --head_size 16"
LINES = (
    f"--api flashinfer.gdn_decode.gated_delta_rule_decode {GDN}",
    f"--api flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose {GDN}",
    f"--api flashinfer.gdn_prefill.chunk_gated_delta_rule --total_seq_len 9 {GDN.replace('batch_size', 'num_seqs')}",
    "--api flashinfer.mamba.selective_state_update.selective_state_update --batch_size 2 --nheads 4 --ngroups 2",
    "--api flashinfer.topk.top_k --batch_size 4 --vocab_size 128 --top_k 5",
)


def near(ours, other, bound=1e-5):
    torch.testing.assert_close(ours.double(), other.double(), rtol=bound, atol=bound)


def delta_rule(tokens, **changes):
    sizes = {"batch_size": 2, "seq_len": tokens, "num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4, "head_size": 16}
    made = gated_delta_rule_decode_trace.init(**sizes, device="cpu")
    return {**made, "state": made["state"] * 0.1, **changes}


def test_decoding_answers_as_flashinfers_recurrence_of_more_tokens_does():
    """The reference of `gated_delta_rule_mtp` is in fp64, normalises its queries and knows a pool of states."""
    made = delta_rule(3)
    out, state = by_hand._decoded(**made)
    theirs = {name: value for name, value in made.items() if name != "state"}
    pool = {"initial_state": made["state"], "initial_state_indices": torch.arange(2)}
    expected, after = gdn_mtp_trace.reference(**theirs, **pool, disable_state_update=False)
    near(out.bfloat16(), expected, 0.01)
    near(state, after)


def test_flashinfers_reference_of_decoding_is_ours_of_queries_that_are_normalised_before():
    """So the kernels, which normalise by default, differ from it by the length of a query: 11 for 128 numbers."""
    made = delta_rule(1)
    before = {**made, "q": normalize(made["q"].float(), dim=-1), "k": normalize(made["k"].float(), dim=-1)}
    ours, state = by_hand._decoded(**made)
    near(ours.bfloat16(), gated_delta_rule_decode_trace.reference(**before, scale=None)[0], 0.01)
    raw = gated_delta_rule_decode_trace.reference(**made, scale=None)[0]
    assert (raw.float() / ours).median() == pytest.approx(16**0.5, rel=0.2)
    by_columns, other = by_hand._decoded_by_columns(**{**made, "state": made["state"].transpose(-1, -2).contiguous()})
    near(by_columns, ours)
    near(other.transpose(-1, -2), state)


def test_prefill_takes_gates_where_flashinfers_reference_computes_them():
    made = gdn_prefill_trace.init(
        total_seq_len=9, num_seqs=2, num_q_heads=2, num_k_heads=2, num_v_heads=4, head_size=16, device="cpu"
    )
    raw = {"A_log": torch.randn(4), "a": torch.randn(9, 4), "dt_bias": torch.randn(4), "b": torch.randn(9, 4)}
    decay, beta = by_hand._gates(*raw.values())
    rows = {name: made[name] for name in ("q", "k", "v", "cu_seqlens")}
    expected, _ = gdn_prefill_trace.reference(**rows, state=None, **raw, scale=None)
    near(by_hand._prefilled(**rows, a=decay, b=beta).bfloat16(), expected, 0.01)


def test_a_state_with_heads_is_updated_as_flashinfers_reference_updates_each():
    made = by_hand._mamba_init(batch_size=2, nheads=4, dim=8, dstate=16, ngroups=2, device="cpu")
    del made["dt_softplus"]
    made["state"] = made["state"].float()
    state = made["state"].clone()
    out = by_hand._mamba_updated(**{**made, "state": state})
    slots = made["state_batch_indices"]
    for head in range(4):
        own = made["state"][slots, head].clone()
        by_head = {name: made[name][:, head] for name in ("x", "dt")}
        of_layer = {name: made[name][head] for name in ("A", "D", "dt_bias")}
        of_group = {name: made[name][:, head // 2] for name in "BC"}
        expected = selective_state_update_trace.reference(
            own, **by_head, **of_layer, **of_group, z=None, dt_softplus=True
        )
        near(out[:, head], expected, 0.02)
        near(state[slots, head], own)
    untouched = torch.ones(len(state), dtype=torch.bool).index_fill(0, slots, value=False)
    assert torch.equal(state[untouched], made["state"][untouched])


def test_there_is_a_line_for_each():
    assert {line.split()[1] for line in LINES} == set(by_hand.TEMPLATES)


@pytest.mark.parametrize("line", LINES)
def test_every_fault_is_found_and_nothing_that_is_read_is_filled_before_a_call(line, cpu):
    one = case(line)
    assert missed(one, cpu) == []
    made = inputs(one.routine, one.params)
    written = [output.argument for output in one.routine.api.outputs if output.argument in made.call]
    made.shared.first = FirstCall(changed=dict.fromkeys(written, (1.0,)))
    assert one.routine.outputs(made) == ()


def test_a_template_of_a_newer_flashinfer_is_left_out():
    def located(path):
        raise AttributeError(path)

    assert dict(by_hand.completed({}, located)) == {}
