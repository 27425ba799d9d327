"""A recorded call becomes the case that makes the same call, or a sentence that says why none does."""

import copy
import random

import pytest
import torch
from hypothesis import given, strategies
from mutations import changed
from recorded_traffic import CALLS, decode, integers, prefill, product, tensor, unknown

from pytest_flashinfer_perf.extensions.apis import call_inputs as inputs_of
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.traffic import arguments as recorded_arguments
from pytest_flashinfer_perf.extensions.traffic import recording, translate
from pytest_flashinfer_perf.extensions.traffic.problem import CallArguments, NoCaseError
from pytest_flashinfer_perf.extensions.traffic.recording import RecordedCall, WrapperState
from pytest_flashinfer_perf.routines import _offsets, all_routines
from pytest_flashinfer_perf.routines.moe import _routing
from pytest_flashinfer_perf.rows.fields import FieldError, read, written
from pytest_flashinfer_perf.spec import CannotRunError

HEADS = {"num_qo_heads": 32, "num_kv_heads": 8}
NATIVE = "flashinfer.decode.trtllm_batch_decode_with_kv_cache"


def called(api, plan=None, sample=None, init=None, **arguments):
    wrapper = None if plan is None else WrapperState(init=init or {}, plan=plan)
    samples = () if sample is None else (sample,)
    return RecordedCall(api=f"flashinfer.{api}", arguments=arguments, wrapper=wrapper, count=7, samples=samples)


def posed(call):
    return translate.problem(CallArguments(call, call.samples[0] if call.samples else None))


RAGGED = {**HEADS, "head_dim_qk": 192, "head_dim_vo": 128, "qo_indptr": integers(3), "kv_indptr": integers(3)}
LATENT = {"num_heads": 16, "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": 32}
WEIGHTS = {"fc1_expert_weights": tensor(8, 2048, 4096), "fc2_expert_weights": tensor(8, 4096, 1024)}
CHOSEN = {"token_selected_experts": {"counts": [64, 40, 20, 4]}}


@pytest.mark.parametrize(
    ("call", "backend", "wanted"),
    [
        (decode([9, 17, 33], count=1), "auto",
         {"batch_size": 3, "s_kv": 33, "actual_seq_lens_kv": "9,17,33", "page_size": 4, "num_qo_heads": 4}),
        (prefill([16, 5, 0], [16, 40, 0], 1), "fa2",
         {"s_qo": 16, "actual_seq_lens_q": "16,5,0", "actual_seq_lens_kv": "16,40,0", "causal": True}),
        (called("prefill.BatchPrefillWithRaggedKVCacheWrapper.run", RAGGED,
                {"qo_indptr": {"lengths": [7, 9]}, "kv_indptr": {"lengths": [7, 20]}},
                q=tensor(16, 32, 192), k=tensor(27, 8, 192), v=tensor(27, 8, 128)), "fa2",
         {"actual_seq_lens_q": "7,9", "actual_seq_lens_kv": "7,20", "head_dim_vo": 128, "causal": False}),
        (called("mla.BatchMLAPagedAttentionWrapper.run",
                {**LATENT, "qo_indptr": integers(3), "kv_len_arr": integers(2)},
                {"qo_indptr": {"lengths": [1, 1]}, "kv_len_arr": {"values": [100, 5]}}, {"backend": "fa3"},
                q_nope=tensor(2, 16, 512), ckv_cache=tensor(40, 32, 512)), "fa3",
         {"actual_seq_lens_kv": "100,5", "head_dim_ckv": 512, "num_qo_heads": 16, "s_qo": 1}),
        (called("decode.trtllm_batch_decode_with_kv_cache", sample={"seq_lens": {"values": [100, 5]}},
                query=tensor(2, 32, 128), kv_cache=tensor(40, 2, 8, 16, 128, dtype="float8_e4m3fn"),
                seq_lens=integers(2)), "trtllm-native",
         {"actual_seq_lens_kv": "100,5", "kv_dtype": "fp8_e4m3", "num_kv_heads": 8, "page_size": 16}),
        (product(48, 96, 64, count=1), "cudnn", {"m": 48, "n": 96, "k": 64, "bias": False}),
        (called("gemm.mm_fp4", a=tensor(48, 32, dtype="uint8"), b=tensor(32, 96, dtype="uint8"),
                use_8x4_sf_layout=True), "auto",
         {"m": 48, "n": 96, "k": 64, "use_mxfp4": False, "use_128x4_sf_layout": False}),
        (called("gemm.bmm_fp8", A=tensor(3, 8, 64, dtype="float8_e4m3fn"), B=tensor(3, 64, 96, dtype="float8_e5m2"),
                dtype={"dtype": "float16"}, backend="cudnn"), "cudnn",
         {"batch_size": 3, "m": 8, "n": 96, "k": 64, "mat2_dtype": "fp8_e5m2", "out_dtype": "float16"}),
        (called("fused_moe.core.cutlass_fused_moe", sample=CHOSEN, input=tensor(64, 4096),
                token_selected_experts=tensor(64, 2, dtype="int32"), output_dtype={"dtype": "bfloat16"},
                activation_type={"enum": "ActivationType.Geglu", "value": 4}, **WEIGHTS), "cutlass",
         {"num_experts": 8, "top_k": 2, "expert_counts": "64,40,20,4,4x0", "activation_type": "Geglu"}),
        (called("norm.fused_add_rmsnorm", input=tensor(5, 4096), residual=tensor(5, 4096), weight=tensor(4096)),
         "flashinfer", {"batch_size": 5, "hidden_size": 4096}),
        (called("page.append_paged_kv_cache", append_key=tensor(64, 8, 128), batch_indices=integers(64),
                paged_kv_cache=tensor(90_000, 2, 16, 8, 128), kv_indptr=integers(9), kv_last_page_len=integers(8)),
         "flashinfer", {"nnz_kv": 64, "batch_size": 8, "num_kv_heads": 8, "page_size": 16, "num_pages": 1024}),
        (called("sampling.top_p_sampling_from_probs", probs=tensor(5, 320, dtype="float32"), top_p=0.9, seed=3),
         "flashinfer", {"batch_size": 5, "vocab_size": 320, "arguments": "top_p=0.9,seed=42,offset=0"}),
    ],
    ids=lambda value: value.api.rpartition(".")[2] if isinstance(value, RecordedCall) else "",
)  # fmt: skip
def test_a_call_is_the_case_that_makes_it(call, backend, wanted):
    found = posed(call)
    assert found.backend == backend
    assert {name: found.params.get(name) for name in wanted} == wanted
    assert found.case(found.backend).words  # which its parameters can be written in


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"plan": {"window_left": 127}}, "no routine measures attention with a window"),
        ({"arguments": {"sinks": tensor(4, dtype="float32")}}, "attention with sinks"),
        ({"plan": {"logits_soft_cap": 30.0}}, "attention with a cap of its logits"),
        ({"plan": {"deprecated_positional_args": ["NONE", 127]}}, "attention with arguments in the order of an older"),
        ({"arguments": {"args": [tensor(4, dtype="float32"), 0.5]}}, "attention with a kernel of its own"),
        ({"arguments": {"skip_softmax_threshold_scale_factor": 1e3}}, "attention with keys that it skips"),
        ({"samples": ()}, "what indptr held was not recorded"),
        ({"plan": {"page_size": "x"}}, "page_size was not recorded"),
    ],
)
def test_what_no_routine_knows_is_said(change, reason):
    call = copy.deepcopy(decode([9, 17], count=3))
    for where, more in change.items():
        if where == "samples":
            call = RecordedCall(**{**vars(call), "samples": more})
        else:
            (call.wrapper.plan if where == "plan" else call.arguments).update(more)
    with pytest.raises(NoCaseError, match=reason):
        posed(call)
    with pytest.raises(NoCaseError, match="no trace template"):
        posed(unknown(1))


def rms(x, weight):
    return called("norm.rmsnorm", input=x, weight=weight)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (rms(tensor(5, 64), tensor(64)), ""),
        (rms(tensor(5, 64, dtype="float16"), tensor(64, dtype="float16")), ""),
        (rms(tensor(5, 64, dtype="float64"), tensor(64)), "input is float64, and bfloat16 in its trace template"),
        (rms(tensor(5, 64, dtype="float8_e4m3fn"), tensor(64)), "input is float8_e4m3fn, and bfloat16 in its trace"),
        (rms(tensor(5, 64, dtype="made_up"), tensor(64)), "input is made_up, and bfloat16 in its trace template"),
        (rms(tensor(5, 64), tensor(64, dtype="float32")), "weight is float32, and bfloat16 in its trace template"),
        (rms({**tensor(5, 64), "strides": [128, 1]}, tensor(64)), "input has another layout in memory than"),
        (called("norm.layernorm", input=tensor(5, 64), gemma=tensor(64, dtype="float32"),
                beta=tensor(64, dtype="float32")), ""),
        (called("norm.layernorm", input=tensor(5, 64), gemma=tensor(64), beta=tensor(64)),
         "gemma is bfloat16, and float32 in its trace template"),
        (called("gemm.mm_bf16", a=tensor(5, 64, dtype="float16"), b=tensor(64, 8, dtype="float16")),
         "mm_bf16 is measured with operands of bfloat16, not of float16 and float16"),
    ],
)  # fmt: skip
def test_types_and_layouts_are_those_of_the_call_or_it_has_no_case(call, reason):
    if not reason:
        assert posed(call).params["batch_size"] == 5
        return
    with pytest.raises(NoCaseError, match=reason):
        posed(call)


@pytest.mark.parametrize("seed", range(4))
def test_strange_calls_have_no_traceback(seed):
    rand, translated = random.Random(seed), 0
    for _ in range(1000):
        try:
            call = read(RecordedCall, changed(rand, written(rand.choice(CALLS)), 1), "call")
            recording.VERIFY[RecordedCall](call)  # as the reader of the file does
        except FieldError:
            continue
        for x in (CallArguments(call, sample) for sample in call.samples or (None,)):
            try:
                found = translate.problem(x)
            except NoCaseError:
                continue
            assert found.seconds > 0
            assert found.sizes
            translated += 1
    assert translated


# What a case calls is recorded, and is the same case again.


@pytest.mark.parametrize("family", ["norm", "rope", "activation", "cascade", "quantization"])
def test_a_case_of_a_template_calls_what_becomes_the_case_again(family):
    """Of APIs with one template."""
    seen = 0
    for name, routine in all_apis().items():
        if routine.family != family or routine.api.templates > 1 or not routine.api.inputs:
            continue
        params = next(iter(routine.tiers["smoke"]())).params
        try:
            made = inputs_of.make(routine.api, params, "cpu", 0)
        except CannotRunError:  # without a GPU
            continue
        arguments = recorded_arguments.described(torch, made.call, {})
        once = posed(RecordedCall(api=routine.api.path, arguments=arguments, wrapper=None, count=1))
        sizes = {axis.name for axis in routine.api.axes}
        assert {n: once.params.get(n) for n in sizes} == {n: getattr(params, n) for n in sizes}, name
        seen += 1
    assert seen


lengths = strategies.lists(strategies.integers(1, 600), min_size=1, max_size=6)


@given(lengths)
def test_a_decoding_case_calls_what_becomes_the_case_again(kv):
    """By the page table that the case's own inputs have."""
    found = posed(decode(kv, count=3))
    routine = all_routines()["BatchDecodeWithPagedKVCacheWrapper"]
    x = routine.inputs(found.typed, torch.Generator().manual_seed(1), torch.device("cpu"))
    assert x.seq_lens.tolist() == kv
    held = {"indptr": {"lengths": x.table.indptr.diff().tolist()}}
    held |= {"last_page_len": {"values": x.table.last_page_len.tolist()}}
    call = decode(kv, count=3)
    again = posed(RecordedCall(**{**vars(call), "samples": (held,)}))
    assert again == found


@given(strategies.lists(strategies.integers(0, 70), min_size=1, max_size=40))
def test_lists_are_written_as_they_are_read(numbers):
    assert _offsets.listed(_offsets.as_list(numbers)) == numbers


@given(strategies.data())
def test_experts_are_chosen_as_often_as_they_were(data):
    tokens, top_k = data.draw(strategies.integers(1, 20)), data.draw(strategies.integers(1, 4))
    chosen = [data.draw(strategies.permutations(range(6)))[:top_k] for _ in range(tokens)]
    counts = [sum(expert in one for one in chosen) for expert in range(6)]
    drawn = _routing.counted(counts, tokens, torch.Generator().manual_seed(0))
    assert drawn.shape == (tokens, top_k)
    assert torch.bincount(drawn.flatten(), minlength=6).tolist() == counts
    assert all(len(set(one)) == top_k for one in drawn.tolist())
