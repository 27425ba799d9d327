"""Templates by hand: their references against others that are written in another way, and each case to its end."""

import pytest
import torch
from derived_cases import case, inputs
from derived_cases import given as given_to
from flashinfer.trace.templates.gdn import gated_delta_rule_decode_trace, gdn_mtp_trace, gdn_prefill_trace
from flashinfer.trace.templates.mamba import selective_state_update_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_faults import missed
from torch.nn.functional import layer_norm, normalize, scaled_dot_product_attention, silu

from pytest_flashinfer_perf.extensions.apis import by_hand, calling, prepare
from pytest_flashinfer_perf.extensions.apis.by_hand import attention, mended, norm, recurrent
from pytest_flashinfer_perf.extensions.apis.given import FirstCall, Given
from pytest_flashinfer_perf.extensions.apis.known import all_apis
from pytest_flashinfer_perf.extensions.apis.routine import requirements
from pytest_flashinfer_perf.machine import capability

BIG_ON_A_CPU = ("fp8_blockscale", "mono_moe", "cute_dsl_fused_moe", "selective_state_update", "mm_fp8")
MOST = {"batch_size": 2, "num_qo_heads": 8, "num_kv_heads": 2, "nheads": 8, "ngroups": 1, "num_heads": 8}
HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 16}


def dense(q, k, v, visible):
    """By torch's own attention in fp64: [rows, heads, dim] over [tokens, KV heads, dim]."""
    k, v = (side.double().repeat_interleave(q.shape[1] // side.shape[1], 1).transpose(0, 1) for side in (k, v))
    return scaled_dot_product_attention(q.double().transpose(0, 1), k, v, attn_mask=visible).transpose(0, 1)


def near(ours, other, bound=1e-5):
    torch.testing.assert_close(ours.double(), other.double(), rtol=bound, atol=bound)


def of_pages(made, nth, rows):
    """A request's queries, keys and values, by its page table."""
    plan, cache = made["plan"], made["run"].get("kv_cache") or made["run"]["paged_kv_cache"]
    starts = plan["kv_indptr"] if "kv_indptr" in plan else plan["paged_kv_indptr"]
    indices = plan["kv_indices"] if "kv_indices" in plan else plan["paged_kv_indices"]
    owned = indices[starts[nth] : starts[nth + 1]].long()
    return made["run"]["q"][nth * rows : (nth + 1) * rows], *(side[owned].flatten(0, 1) for side in cache)


@pytest.mark.parametrize(("init", "window"), [(attention._mixed_init, None), (attention._window_init, 20)])
def test_requests_of_a_paged_cache_are_answered_as_torch_answers_each(init, window):
    sizes = {"batch_size": 3, "qo_len": 35, "kv_len": 67, "page_size": 8, **HEADS, "device": "cpu"}
    made = init(**sizes, **({"window_left": window} if window else {}))
    named = {**made["plan"], **made["run"]}
    taken = attention._mixed if window is None else attention._prefill
    known = {name: named[name] for name in taken.__code__.co_varnames[: taken.__code__.co_argcount] if name in named}
    out = taken(**known)[0] if window is None else taken(**known)
    last = 67 - 35 + torch.arange(35)[:, None]
    positions = torch.arange(67)
    visible = (positions <= last) & (positions >= last - (window or 67))
    for nth in range(3):
        q, k, v = of_pages(made, nth, 35)
        near(out[nth * 35 : (nth + 1) * 35], dense(q, k[:67], v[:67], visible))


def test_a_sink_is_a_token_whose_value_is_zero():
    made = attention._sink_init(batch_size=2, qo_len=3, kv_len=40, page_size=8, **HEADS, device="cpu")
    named = {**made["plan"], **made["run"]}
    known = {n: named[n] for n in attention._prefill.__code__.co_varnames[:9] if n in named}
    out, (sinks, scale) = attention._prefill(**known), named["args"]
    q, k, v = (part.double() for part in of_pages(made, 1, 3))
    logits = torch.einsum("shgd,thd->shgt", q.unflatten(1, (2, -1)), k).flatten(1, 2) * scale
    seen = torch.arange(40) <= 37 + torch.arange(3)[:, None]
    weights = logits.exp() * seen[:, None]
    shares = weights / (weights.sum(-1, keepdim=True) + sinks.double().exp()[:, None])
    near(out[3:], torch.einsum("shgt,thd->shgd", shares.unflatten(1, (2, -1)), v).flatten(1, 2))


def test_blocks_that_a_mask_keeps_are_all_that_is_seen():
    made = attention._blocks_init(qo_len=40, kv_len=48, block_size=16, **HEADS, device="cpu", seed=1)
    plan, run = made["plan"], made["run"]
    out = attention._blocks(**run, indptr=plan["indptr"], indices=plan["indices"], R=16, C=16)
    mask = torch.zeros(40, 48, dtype=torch.bool)
    for row, (start, end) in enumerate(zip(plan["indptr"], plan["indptr"][1:], strict=False)):
        for column in plan["indices"][start:end].tolist():
            mask[row * 16 : (row + 1) * 16, column * 16 : (column + 1) * 16] = True
    assert 0 < mask.float().mean() < 1
    near(out, dense(run["q"], run["k"], run["v"], mask))


def test_blocks_of_many_sizes_are_other_ones_for_each_head():
    made = attention._uneven_blocks_init(qo_len=20, kv_len=31, num_blocks=4, **HEADS, device="cpu", seed=1)
    plan, (q, k, v) = made["plan"], (made["run"][name] for name in "qkv")
    sizes = {name: plan[name] for name in ("block_mask_map", "block_row_sz", "block_col_sz")}
    assert (sizes["block_row_sz"].sum(1) == 20).all()
    assert (sizes["block_col_sz"].sum(1) == 31).all()
    out = attention._uneven_blocks(q, k, v, **sizes)
    for head in range(4):
        kept, rows, columns = (size[head // 2] for size in sizes.values())
        mask = kept.repeat_interleave(rows.long(), 0).repeat_interleave(columns.long(), 1)
        own = (part[:, None] for part in (q[head], k[head // 2], v[head // 2]))
        near(out[head], dense(*own, mask)[:, 0])


def delta_rule(tokens, **changes):
    sizes = {"batch_size": 2, "seq_len": tokens, "num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4, "head_size": 16}
    made = gated_delta_rule_decode_trace.init(**sizes, device="cpu")
    return {**made, "state": made["state"] * 0.1, **changes}


def test_decoding_answers_as_flashinfers_recurrence_of_more_tokens_does():
    """The reference of `gated_delta_rule_mtp` is in fp64, normalises its queries and knows a pool of states."""
    made = delta_rule(3)
    out, state = recurrent._decoded(**made)
    theirs = {name: value for name, value in made.items() if name != "state"}
    pool = {"initial_state": made["state"], "initial_state_indices": torch.arange(2)}
    expected, after = gdn_mtp_trace.reference(**theirs, **pool, disable_state_update=False)
    near(out.bfloat16(), expected, 0.01)
    near(state, after)


def test_flashinfers_reference_of_decoding_is_ours_of_queries_that_are_normalised_before():
    """So the kernels, which normalise by default, differ from it by the length of a query: 11 for 128 numbers."""
    made = delta_rule(1)
    before = {**made, "q": normalize(made["q"].float(), dim=-1), "k": normalize(made["k"].float(), dim=-1)}
    ours, state = recurrent._decoded(**made)
    near(ours.bfloat16(), gated_delta_rule_decode_trace.reference(**before, scale=None)[0], 0.01)
    raw = gated_delta_rule_decode_trace.reference(**made, scale=None)[0]
    assert (raw.float() / ours).median() == pytest.approx(16**0.5, rel=0.2)
    by_columns, other = recurrent._decoded_by_columns(**{**made, "state": made["state"].transpose(-1, -2).contiguous()})
    near(by_columns, ours)
    near(other.transpose(-1, -2), state)


def test_prefill_takes_gates_where_flashinfers_reference_computes_them():
    made = gdn_prefill_trace.init(
        total_seq_len=9, num_seqs=2, num_q_heads=2, num_k_heads=2, num_v_heads=4, head_size=16, device="cpu"
    )
    raw = {"A_log": torch.randn(4), "a": torch.randn(9, 4), "dt_bias": torch.randn(4), "b": torch.randn(9, 4)}
    decay, beta = recurrent._gates(*raw.values())
    rows = {name: made[name] for name in ("q", "k", "v", "cu_seqlens")}
    expected, _ = gdn_prefill_trace.reference(**rows, state=None, **raw, scale=None)
    near(recurrent._prefilled(**rows, a=decay, b=beta).bfloat16(), expected, 0.01)


def test_a_state_with_heads_is_updated_as_flashinfers_reference_updates_each():
    sizes = {"batch_size": 2, "nheads": 4, "dim": 8, "dstate": 16, "ngroups": 2, "has_z": True, "device": "cpu"}
    made = recurrent._mamba_init(**sizes, state_dtype="float32", dt_softplus=True)
    made = {name: value for name, value in made.items() if name != "cache_steps"}
    state = made["state"].clone()
    out = recurrent._mamba_updated(**{**made, "state": state})
    slots = made["state_batch_indices"]
    for head in range(4):
        own = made["state"][slots, head].clone()
        by_head = {name: made[name][:, head] for name in ("x", "dt", "z")}
        of_layer = {name: made[name][head] for name in ("A", "D", "dt_bias")}
        of_group = {name: made[name][:, head // 2] for name in "BC"}
        expected = selective_state_update_trace.reference(own, **by_head, **of_layer, **of_group, dt_softplus=True)
        near(out[:, head], expected, 0.02)
        near(state[slots, head], own)
    untouched = torch.ones(len(state), dtype=torch.bool).index_fill(0, slots, value=False)
    assert torch.equal(state[untouched], made["state"][untouched])


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 4), st.integers(0, 8), st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), max_size=6))
def test_a_ring_replays_the_tokens_that_were_accepted(tokens, more, accepted):
    """As a host uses it, call by call, beside one state for each request that takes the accepted tokens at once."""
    sizes = {"nheads": 4, "dim": 4, "dstate": 8, "ngroups": 2, "state_dtype": "float32", "has_z": True, "device": "cpu"}
    window = tokens + more
    call = recurrent._ring_init(batch_size=2, num_predicted_tokens=tokens, max_window=window, **sizes)
    slots, ring = call["state_batch_indices"], window + tokens
    call["prev_num_accepted_tokens"].zero_()
    own, untouched = call["state"].clone(), call["state"].clone().index_fill_(0, slots, 0)
    for nth, counts in enumerate([[0, 0], *accepted]):
        new = recurrent._ring_init(batch_size=2, num_predicted_tokens=tokens, max_window=window, seed=nth, **sizes)
        call |= {name: new[name].float() for name in ("x", "dt", "B", "C", "z")}
        call |= {name: call[name].float() for name in ("x_cache", "B_cache")}  # so that nothing is rounded on the way
        answer = recurrent._replayed(**call)
        one_by_one = {name: value for name, value in call.items() if name not in (*recurrent.SCRATCH, *RING_ONLY)}
        expected = recurrent._mamba_updated(**{**one_by_one, "state": own.clone()})
        near(answer["output"], expected)
        near(answer["new_state"].index_fill(0, slots, 0), untouched)
        pending = call["prev_num_accepted_tokens"]
        for request, slot in enumerate(slots.tolist()):
            count = min(counts[request], tokens)
            taken = {name: call[name][request : request + 1, :count] for name in ("x", "dt", "B", "C", "z")}
            if count:
                of_one = {**one_by_one, **taken, "state": own, "state_batch_indices": slots[request : request + 1]}
                recurrent._mamba_updated(**of_one)
            if pending[slot] + tokens > window:
                call["ring_start"][slot] = (call["ring_start"][slot] + pending[slot]) % ring
                pending[slot] = 0
            pending[slot] += count


RING_ONLY = ("x_cache", "B_cache", "dt_cache", "ring_start", "prev_num_accepted_tokens", "out")


def test_more_tokens_are_one_after_the_other():
    sizes = {"batch_size": 2, "nheads": 2, "dim": 4, "dstate": 8, "ngroups": 1, "device": "cpu"}
    made = recurrent._mamba_init(**sizes, cache_steps=3, state_dtype="float32", dt_softplus=True)
    del made["cache_steps"]
    whole, one_by_one = made["state"].clone(), made["state"].clone()
    out = recurrent._mamba_updated(**{**made, "state": whole})
    for t in range(3):
        token = {name: made[name][:, t] for name in ("x", "dt", "B", "C")}
        near(out[:, t], recurrent._mamba_updated(**{**made, **token, "state": one_by_one}), 0.02)
    near(whole, one_by_one)


def test_experts_have_32_rows_of_up_then_32_of_gate():
    made = mended._bf16_init(num_tokens=5, hidden_size=32, intermediate_size=64, num_experts=4, top_k=2, device="cpu")
    gate, up = torch.randn(2, 4, 64, 32).bfloat16() * 0.2
    made["w1_weight"] = torch.stack([up.unflatten(1, (-1, 32)), gate.unflatten(1, (-1, 32))], 2).flatten(1, 3)
    del made["num_experts"], made["top_k"]
    expected = torch.zeros(5, 32)
    for token in range(5):
        for slot in range(2):
            expert, row = made["token_selected_experts"][token, slot], made["x"][token].float()
            between = (silu(row @ gate[expert].float().T) * (row @ up[expert].float().T)).bfloat16().float()
            share = made["token_final_scales"][token, slot]
            expected[token] += share * (between @ made["w2_weight"][expert].float().T)
    near(mended._bf16(**made), expected, 1e-3)


def test_norms_of_video_models_are_torchs():
    made = norm._gamma_beta_init(batch_size=1, num_rows=2, device="cpu")
    wide = {name: value.double() for name, value in made.items()}
    after, normalised = norm._dit(**wide)
    expected = wide["residual"] + wide["input"] * (wide["gate"] + wide["gate_bias"])
    near(after, expected)
    near(normalised, layer_norm(expected, (3072,), wide["gamma"], wide["beta"], 1e-6))
    made = norm._residual_init(batch_size=1, num_rows=2, device="cpu")
    wide = {name: value.double() for name, value in made.items()}
    scaled = layer_norm(wide["residual"] + wide["input"], (3072,), eps=1e-6) * (1 + wide["scale"] + wide["scale_bias"])
    near(norm._dit(**wide)[1], scaled + wide["shift"] + wide["shift_bias"])


def test_a_patch_is_turned_by_its_frame_row_and_column():
    made = norm._video_init(batch_size=1, hidden_size=128, num_heads=2, ppf=2, pph=3, ppw=4, device="cpu")
    q, k, v = norm._video(**{n: value for n, value in made.items() if not n.startswith("num_heads")})
    frame, row, column = 1, 2, 3
    token = (frame * 3 + row) * 4 + column
    part = made["qkv"][0, token, 128:256].double()
    normalised = part / (part.square().mean() + 1e-6).sqrt() * made["k_weight"].double()
    expected, at = normalised.unflatten(0, (2, 64)), 0
    widths = [made[f"num_{name}_channels"] for name in ("frame", "height", "width")]
    for place, width in zip((frame, row, column), widths, strict=True):
        for pair in range(width // 2):
            angle = torch.tensor(place * 10000.0 ** (-2 * pair / width), dtype=torch.float64)
            first, second = expected[:, at].clone(), expected[:, at + 1].clone()
            expected[:, at] = first * angle.cos() - second * angle.sin()
            expected[:, at + 1] = first * angle.sin() + second * angle.cos()
            at += 2
    near(k[0, token], expected, 1e-4)
    assert torch.equal(v[0, token].flatten(), made["qkv"][0, token, 256:].float())
    assert q.shape == k.shape == v.shape


def test_scales_by_columns_are_the_same_numbers_in_rows_of_four():
    made = given_to("gemm.gemm_base.fp8_blockscale_gemm_sm90", M=6, N=128, K=256)
    assert (tuple(made["input_scale"].shape), made["input_scale"].stride()) == ((6, 2), (1, 8))
    rows = made["input"].float().unflatten(1, (2, 128)) * made["input_scale"][..., None]
    assert rows.std().item() == pytest.approx(1.0, abs=0.1)


def test_what_an_expanded_tensor_has_once_counts_once():
    assert prepare._size(torch.ones(4, 1).expand(4, 8)) == 16
    assert prepare._size(torch.ones(4, 8).mT) == 128


def test_arguments_without_a_name_follow_those_before_them():
    def run(q, cache, *args, out=None):
        return q, cache, args, out

    called = calling._positional(run, Given({"args": (3, 4)}, {}))
    assert called(cache=2, q=1, args=(3, 4), out=5) == (1, 2, (3, 4), 5)
    assert calling._positional(run, Given({}, {})) is run


def test_what_a_call_by_hand_reads_is_never_filled_with_nan_before_it():
    """As the ring of checkpointing_ssu, once a kernel writes all that the template names (16 requests and more)."""
    for line in small_lines():
        routine, params = case(line).routine, case(line).params
        made = inputs(routine, params)
        written = [one.argument for one in routine.api.outputs if one.argument in made.call]
        made.shared.first = FirstCall(changed=dict.fromkeys(written, (1.0,)))
        filled = {tensor.data_ptr() for tensor in routine.outputs(made)}
        tensors = {name: value for name, value in made.call.items() if isinstance(value, torch.Tensor)}
        names = {name for name, tensor in tensors.items() if tensor.data_ptr() in filled}
        assert names <= made.shared.unfilled, routine.name


@pytest.mark.parametrize("part", ["fused_moe.core.trtllm_", "prims_ts", "trtllm_ragged_attention"])
def test_a_kernel_that_would_be_downloaded_first_is_refused_by_the_name_of_its_gpus(part, hopper):
    for name, api in all_apis().items():
        if part in name:
            reason = capability.missing(requirements(api.api, api.api.backends[0]), hopper)
            assert reason is not None
            assert "needs compute capability 10.0" in reason


def small_lines():
    for name, api in all_apis().items():
        if api.api.by_hand and not any(part in name for part in BIG_ON_A_CPU):
            shape = next(iter(api.tiers["smoke"]()))
            axes = {axis: value for axis, value in shape.params.axes.items() if not isinstance(value, bool)}
            sizes = [f"--{axis}={min(value, MOST.get(axis, value))}" for axis, value in axes.items()]
            yield " ".join(["--api", name, *sizes])


def test_every_fault_is_found_by_the_references_by_hand(cpu):
    found = {}
    for line in small_lines():
        found[case(line).routine.name] = missed(case(line), cpu)
    assert len(found) >= 17
    quantised = {name for name in found if "quantize" in name}  # 2 % are less than a step of fp8
    assert {name for name, faults in found.items() if faults} <= quantised


def test_a_template_of_a_newer_flashinfer_is_left_out():
    def located(path):
        raise AttributeError(path)

    kept = dict(by_hand.completed({}, located))
    assert kept == {}


def test_a_template_whose_api_has_other_arguments_is_left_out():
    """As checkpointing_ssu in 0.6.18, which has two buffers in place of a ring."""
    kept = by_hand.completed({}, lambda _: lambda state, old_x, out: (state, old_x, out))
    assert "flashinfer.mamba.checkpointing_ssu.checkpointing_ssu" not in {path for (path, _), _ in kept}
