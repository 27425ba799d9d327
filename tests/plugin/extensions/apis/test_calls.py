"""Calls of any form are checked, and what they cost is derived as a routine's file has it."""

from dataclasses import replace

import planted_apis
import pytest
import torch
from derived_cases import api_of, build, built, case, given, inputs

from pytest_flashinfer_perf import check_answer
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine.one_case import run_case
from pytest_flashinfer_perf.extensions.apis import call_inputs, prepare, registry, routine, truth
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import CannotRunError, Shape

FOUR_HEADS = "--batch_size 2 --num_qo_heads 4"
GROUPED = f"{FOUR_HEADS} --num_kv_heads 2"
KV = "--s_kv 128 --head_dim_qk 128"
OVERLAP = {
    "decode": (
        f"decode.BatchDecodeWithPagedKVCacheWrapper.run {GROUPED} --num_pages_per_seq 8",
        f"BatchDecodeWithPagedKVCacheWrapper {GROUPED} {KV} --page_size 16",
    ),
    "paged prefill": (
        f"prefill.BatchPrefillWithPagedKVCacheWrapper.run {GROUPED} --total_q 32 --num_pages_per_seq 8",
        f"BatchPrefillWithPagedKVCacheWrapper {GROUPED} --s_qo 16 {KV} --page_size 16 --causal",
    ),
    "ragged prefill": (
        f"prefill.BatchPrefillWithRaggedKVCacheWrapper.run {GROUPED} --total_q 32 --total_kv 256",
        f"BatchPrefillWithRaggedKVCacheWrapper {GROUPED} --s_qo 16 {KV} --head_dim_vo 128 --causal",
    ),
    "mla": (
        f"mla._batch_mla._wrapper.BatchMLAPagedAttentionWrapper.run {FOUR_HEADS} --num_pages_per_seq 2",
        f"BatchMLAPagedAttentionWrapper {FOUR_HEADS} --s_kv 128 --page_size 64 --head_dim_ckv 512 --head_dim_kpe 64",
    ),
    "mm_bf16": ("gemm.gemm_base.mm_bf16 --M 8 --N 64 --K 32", "mm_bf16 --m 8 --n 64 --k 32"),
    "bmm_bf16": (
        "gemm.gemm_base.bmm_bf16 --batch_size 2 --M 8 --N 64 --K 32",
        "bmm_bf16 --batch_size 2 --m 8 --n 64 --k 32",
    ),
}


def cost_of(line):
    one = case(line)
    x = inputs(one.routine, one.params)
    build(one.routine, one.params, x)
    return one.routine.cost(one.params, x)


@pytest.mark.parametrize("which", OVERLAP)
def test_what_is_derived_is_what_a_routine_declares_by_hand(which):
    """The products are the same ones; of the bytes, lengths and tables of pages differ by less than 1 %."""
    api, routine = OVERLAP[which]
    derived, by_hand = cost_of(f"--api flashinfer.{api}"), cost_of(f"--routine {routine}")
    assert derived.flops == by_hand.flops
    assert derived.bytes == pytest.approx(by_hand.bytes, rel=0.01)


def test_experts_that_no_token_is_likely_to_choose_are_not_counted():
    sizes = "--seq_len 2 --num_experts 8 --top_k 2 --hidden_size 128 --intermediate_size 128"
    cost = cost_of(f"--api flashinfer.fused_moe.monomoe.mono_moe {sizes}")
    weights, scales = 8 * (256 + 128) * 128, 8 * (2 + 1) * 4
    assert cost.flops == 2 * 2 * 2 * (256 + 128) * 128
    tokens_and_logits = 2 * 2 * (128 + 8)
    assert cost.bytes == round((1 - (1 - 2 / 8) ** 2) * (weights + scales) + tokens_and_logits)


def planted(name):
    """Its calls by `flashinfer`, on a CPU."""
    path = f"{planted_apis.__name__}.{name}"
    found = {known: entry for known, entry in registry.registered().items() if known[0] == path}
    [((path, label), entry)] = found.items()
    api = routine.of(registry.described(path, label, entry, 1))
    for backend in api.api.backends:
        api.backends[backend] = replace(api.backends[backend], requires=())
    return api, api.api.backends[0]


FORMS = ("", "_in_place", "_to", "_under_another_name", "_with_a_size", "_with_what_may_be_none")


@pytest.mark.parametrize("name", ["DoubleWrapper.run", *(f"doubled{form}" for form in FORMS)])
def test_a_call_of_any_form_is_checked(name):
    api, backend = planted(name)
    check_answer(api, backend, api.params(rows=4), device="cpu")


def planted_call(name):
    api, backend = planted(name)
    params = api.params(rows=4)
    x = inputs(api, params)
    return build(api, params, x, backend), x


def test_a_call_that_is_built_again_where_the_answer_is_held_knows_what_the_first_one_changed():
    _, x = planted_call("doubled_to")
    x.call["out"].copy_(2 * x.call["x"])
    before = x.shared.first
    api, backend = planted("doubled_to")
    build(api, api.params(rows=4), x, backend)
    assert x.shared.first is before
    assert list(before.changed) == ["out"]


def test_a_wrapper_can_be_planned_once_more():
    wrapper, _ = planted_call("DoubleWrapper.run")
    before = planted_apis.DoubleWrapper.plans
    wrapper.plan()
    assert planted_apis.DoubleWrapper.plans == before + 1
    assert planted_call("doubled")[0].plan is None


def test_a_wrapper_writes_to_memory_that_its_user_holds():
    wrapper, x = planted_call("DoubleWrapper.run")
    [first], [second] = wrapper.launch(x), wrapper.launch(x)
    assert first is second
    assert torch.equal(first, 2 * x.call["x"])


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("doubled_wrongly", WrongAnswerError, None),
        ("half_written", WrongAnswerError, None),
        ("unwritten", WrongAnswerError, "output y: the call returns it as it was allocated"),
        ("refused", CannotRunError, r"planted_apis\.refused refuses: NotImplementedError: no kernel for this GPU"),
        ("without_a_kernel", CannotRunError, r"'NoneType' object is not callable \(not installed: .*no-such-package\)"),
    ],
)
def test_a_wrong_call_is_wrong_and_a_refusal_is_a_skip_with_the_librarys_sentence(monkeypatch, name, error, sentence):
    """A part of the library that is None has, besides, the names of the packages that are not installed."""
    monkeypatch.setitem(capability.PACKAGES, "planted", (("no_such_module", "no-such-package"),))
    api, backend = planted(name)
    with pytest.raises(error, match=sentence):
        check_answer(api, backend, api.params(rows=4), device="cpu")
    assert not torch.are_deterministic_algorithms_enabled()


def test_experts_whose_values_are_rounded_on_the_way_are_allowed_more():
    mono_moe = api_of("fused_moe.monomoe.mono_moe").api
    hash_topk = api_of("fused_moe.hash_topk.hash_topk").api
    bounds = [truth.tolerance(api, "output", torch.bfloat16).atol for api in (mono_moe, hash_topk)]
    assert bounds == [0.15, 0.02]


def test_any_of_equal_numbers_may_be_among_the_largest_and_no_other():
    top_k = api_of("topk_varlen.topk_varlen.top_k_varlen").api
    logits = torch.tensor([[5.0, 3.0, 3.0, 1.0]], dtype=torch.bfloat16)

    def chosen(*indices):
        return truth.meant(top_k, "indices", torch.tensor([indices]), {"logits": logits, "top_k": 2}).tolist()

    assert chosen(0, 2) == chosen(1, 0)
    wrong = [chosen(0, 3), chosen(2, 1), chosen(0, 0), chosen(0, -1), chosen(0, 4)]
    assert chosen(0, 1) not in wrong


def test_a_flag_is_a_number_as_upstreams_script_gives_it_also_where_init_makes_a_tensor():
    sampler = api_of("sampling.top_k_top_p_sampling_from_probs")
    assert isinstance(_made(sampler).call["top_k"], torch.Tensor)
    call = _made(sampler, arguments="top_k=5,top_p=0.9").call
    assert (call["top_k"], call["top_p"]) == (5, 0.9)


def _made(api, **given):
    return call_inputs.make(api.api, api.params(batch_size=2, vocab_size=64, **given), "cpu", 0)


def test_what_exchanges_data_between_gpus_is_a_skip_on_one(hopper):
    api = api_of("comm.dcp_alltoall.decode_cp_a2a_alltoall")
    reasons = [require(hopper) for require in api.backends["flashinfer"].requires]
    assert f"{api.name} exchanges data between GPUs, and its template makes one rank alone" in reasons


def test_the_scale_that_an_api_takes_by_default_is_of_its_queries():
    decode, _, x = built("decode.BatchDecodeWithPagedKVCacheWrapper.run", batch_size=2)
    answer, _ = truth.answer(decode.api, x)
    q, (k, v) = x.call["q"], x.call["paged_kv_cache"]
    keys, values = (t[:4].flatten(0, 1).repeat_interleave(4, 1).transpose(0, 1).float() for t in (k, v))
    first = torch.nn.functional.scaled_dot_product_attention(q[0, :, None].float(), keys, values)[:, 0]
    assert torch.allclose(answer["output"][0].float(), first, atol=2e-2)


@pytest.mark.parametrize(("requests", "states"), [(4, 8), (64, 64)])
def test_there_are_as_many_states_as_requests_index(requests, states):
    """`init` makes 8 for any number of requests; on a GPU the kernel would read beyond them."""
    x = given("gdn_decode.gated_delta_rule_mtp", batch_size=requests)
    assert len(x["initial_state"]) == states
    assert x["initial_state_indices"].max() < states


def test_an_output_whose_reference_answers_otherwise_is_not_compared():
    append, _, x = built("rope.rope_quantize_fp8_append_paged_kv_cache", nnz=4)
    answer, _ = truth.answer(append.api, x)
    assert set(answer) == {"q_rope_out", "q_nope_out", "paged_kv_cache[1]"}


def test_inputs_are_as_the_api_takes_them_where_init_makes_others():
    """By columns, in fp32, and with a type for what the template has as a number."""
    call_inputs = {}
    for name in ("gemm_base.bmm_fp8", "routergemm.mm_M1_16_K7168_N256"):
        gemm = api_of(f"gemm.{name}")
        call_inputs |= inputs(gemm, next(iter(gemm.tiers["smoke"]())).params).call
    assert (call_inputs["B"].stride(), call_inputs["mat_b"].stride()) == ((64 * 128, 1, 128), (1, 7168))
    assert (call_inputs["dtype"], call_inputs["out"].dtype) == (torch.bfloat16, torch.float32)


def test_a_type_of_the_inputs_leaves_a_quantised_output_as_it_is():
    """Also where the output is the first argument."""
    x = given("norm.fused_add_rmsnorm_quant", batch_size=4, dtype="float16")
    assert (x["out"].dtype, x["input"].dtype) == (torch.float8_e4m3fn, torch.float16)


def test_a_cause_that_stands_in_a_later_line_of_an_error_is_told():
    error = ValueError("No valid config found in search space.\nConfig: 64 x 64\nCompilerError: no assembler")
    told = "ValueError: No valid config found in search space. Config: 64 x 64 CompilerError: no assembler"
    assert call_inputs.in_a_sentence(error) == told
    assert call_inputs.in_a_sentence(NotImplementedError()) == "NotImplementedError"


def test_the_check_negates_activations_rather_than_weights():
    moe = api_of("fused_moe.monomoe.mono_moe")
    sizes = {"seq_len": 2, "num_experts": 8, "top_k": 2, "hidden_size": 128, "intermediate_size": 128}
    x = inputs(moe, moe.params(**sizes))
    assert moe.activations(x) is x.call["activations_in"]
    assert x.call["expert_weights_up"].numel() > x.call["activations_in"].numel()


def test_an_answer_in_place_is_put_back_between_timed_calls(cpu):
    api, backend = planted("doubled_in_place")
    case = Case(api, Shape(api.params(rows=4)), backend)
    measured = run_case(case, Measuring(iters=40, warmup=0), Checking(), cpu).measurement
    assert len(measured.samples) == 40
    assert not measured.verdict.faults
    assert max(check.absolute.expected for check in measured.checks) < 2**8


def test_scales_by_columns_are_the_same_numbers_in_rows_of_four():
    call_inputs = given("gemm.gemm_base.fp8_blockscale_gemm_sm90", M=6, N=128, K=256)
    assert (tuple(call_inputs["input_scale"].shape), call_inputs["input_scale"].stride()) == ((6, 2), (1, 8))
    rows = call_inputs["input"].float().unflatten(1, (2, 128)) * call_inputs["input_scale"][..., None]
    assert rows.std().item() == pytest.approx(1.0, abs=0.1)


def test_what_an_expanded_tensor_has_once_counts_once():
    assert prepare._size(torch.ones(4, 1).expand(4, 8)) == 16
    assert prepare._size(torch.ones(4, 8).mT) == 128


@pytest.mark.parametrize("part", ["fused_moe.core.trtllm_", "prims_ts", "trtllm_ragged_attention"])
def test_a_kernel_that_would_be_downloaded_first_is_refused_by_the_name_of_its_gpus(part, hopper):
    for name, api in all_apis().items():
        if part in name:
            reason = capability.missing(routine.requirements(api.api, api.api.backends[0]), hopper)
            assert reason is not None
            assert "needs compute capability 10.0" in reason
