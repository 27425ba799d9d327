"""Upstream's lines as APIs: its flags translated, or a sentence."""

import re
import shlex

import pytest
import torch
import upstream_parsers
from derived_cases import case, cases, inputs

from pytest_flashinfer_perf import check_answer
from pytest_flashinfer_perf.engine import one_case
from pytest_flashinfer_perf.extensions.testlists import testlist, upstream

LINES = """
rmsnorm --batch_size 32 --hidden_size 8192 --input_dtype float16 --enable_pdl
    -> norm.rmsnorm batch_size=32 hidden_size=8192 dtype=float16 arguments=enable_pdl=True
apply_rope --batch_size 16 --seq_len 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim 64
    -> rope.apply_rope nnz=1024 num_q_heads=8 num_k_heads=2 head_dim=64 dtype=float16
softmax --batch_size 4 --vocab_size 128
    -> sampling.softmax batch_size=4 arguments=enable_pdl=False
top_k_ragged_transform --batch_size 4 --num_rows 8
    -> topk.top_k_ragged_transform num_rows=8 max_len=4096 k=50
top_k_page_table_transform --batch_size 4 --top_k 64
    -> topk.top_k_page_table_transform num_rows=4 batch_size=4 max_len=4096 max_pages_per_seq=4096 k=64
apply_rope_with_cos_sin_cache --batch_size 2 --seq_len 8 --num_qo_heads 8 --num_kv_heads 2 --head_dim 64 --input_dtype
    bfloat16 --interleave
    -> rope.apply_rope_with_cos_sin_cache nnz=16 arguments=is_neox=False num_q_heads_x_head_size=512 dtype=bfloat16
gated_delta_rule_decode --batch_size 4 --state_layout nontranspose
    -> gdn_decode.gated_delta_rule_decode batch_size=4
gated_delta_rule_decode --batch_size 4
    -> gdn_decode.gated_delta_rule_decode_pretranspose batch_size=4
top_k --batch_size 4 --vocab_size 128 --top_k 5 --input_dtype bfloat16
    -> topk.top_k batch_size=4 vocab_size=128 top_k=5 dtype=bfloat16
top_k_sampling_from_probs --batch_size 4 --vocab_size 128 --top_k 5 --refcheck -vv
    -> sampling.top_k_sampling_from_probs batch_size=4 vocab_size=128 arguments=top_k=5,seed=42,offset=0
selective_state_update --batch_size 4 --nheads 8 --dim 64 --dstate 64 --state_dtype bfloat16 --input_dtype bfloat16
    -> mamba.selective_state_update.selective_state_update nheads=8 ngroups=8 dim=64
gated_delta_rule_mtp --batch_size 4
    -> gdn_decode.gated_delta_rule_mtp batch_size=4 seq_len=2
"""


@pytest.mark.parametrize("entry", re.split(r"\n(?! )", LINES.strip()))
def test_a_line_of_upstreams_is_that_api(entry):
    line, _, expected = entry.partition("->")
    name, *known = expected.split()
    [one, *_] = cases(f"--routine {line}")
    assert one.routine.name == f"flashinfer.{name}"
    for field, _, value in (one.partition("=") for one in known):
        assert str(getattr(one.params, field)) == value, field


@pytest.mark.parametrize("routine", ["rmsnorm_quant", "fused_add_rmsnorm_quant"])
def test_a_lines_scale_is_a_tensor_as_in_upstreams_script(routine):
    """Of a number FlashInfer would make a tensor in each call, which takes ten times as long as the kernel."""
    one = case(f"--routine {routine} --batch_size 2 --hidden_size 64 --scale 2.5")
    scale = inputs(one.routine, one.params).call["scale"]
    assert isinstance(scale, torch.Tensor)
    assert scale.item() == 2.5


SAMPLERS = {
    *("sampling_from_probs", "top_k_sampling_from_probs", "top_p_sampling_from_probs", "min_p_sampling_from_probs"),
    *("top_k_renorm_probs", "top_p_renorm_probs", "top_k_top_p_sampling_from_probs"),
}


def test_every_sampler_of_upstreams_answers_for_its_probabilities():
    for name in SAMPLERS:
        one = case(f"--routine {name} --batch_size 64 --vocab_size 500")
        check_answer(one.routine, "torch", one.params, device="cpu")


AUTOTUNED = ["--routine mm_mxfp8 --m 4 --n 128 --k 128", "--api flashinfer.norm.rmsnorm --batch_size 4"]


@pytest.mark.parametrize("line", AUTOTUNED)
def test_autotune_is_no_abbreviation_and_asks_the_tuner(line):
    plain, tuned = cases(line), cases(f"{line} --autotune")
    assert [case.autotunes for case in (*plain, *tuned)] == [False] * len(plain) + [True] * len(plain)
    assert [case.id for case in tuned] == [f"{case.id}-autotune" for case in plain]
    assert cases(shlex.join(tuned[0].words)) == [tuned[0]]
    assert tuned[0].autotune_cache is None


def test_a_case_of_a_template_s_reference_has_nothing_to_autotune(cpu):
    one = case(f"{AUTOTUNED[1]} --autotune")
    assert one_case.obstacle(one, cpu) == "torch has nothing to autotune: leave out --autotune"


@pytest.fixture
def entries(tmp_path):
    def read(lines):
        path = tmp_path / "lines.txt"
        path.write_text("\n".join(f"--routine {line}" for line in lines))
        return testlist.read(path)

    return read


def test_what_of_upstreams_is_no_api_is_named_with_its_reason(entries):
    lines = {
        "layernorm_quant --batch_size 4 --hidden_size 64 --num_heads 2": "its template has no --num_heads",
        "mixed_comm --batch_size 4": "mixed_comm needs NVLink multicast",
        "b12x_fused_moe --num_tokens 4": "its template has no init",
    }
    for entry, sentence in zip(entries(lines), lines.values(), strict=True):
        assert sentence in entry.missing


def test_every_routine_of_upstreams_on_one_gpu_is_an_api_or_has_a_reason(entries):
    for entry in entries(sorted(upstream.ROUTINES)):
        communicates = any(name in entry.name for name in upstream.COMMUNICATION)
        assert entry.case or entry.problem or communicates or ": " in entry.missing, entry
        assert not entry.problem or "are required" in entry.problem, entry


def least_of(routine):
    """Without the flags that a line has for itself."""
    family = next(family for family, names in upstream_parsers.ROUTINES.items() if routine in names.split())
    return upstream_parsers.LEAST.get(family, "")


def test_the_shortest_line_of_each_routine_runs_as_its_api_or_is_a_sentence(entries):
    """Of each on one GPU that no routine's file is of."""
    names = [name for family in upstream_parsers.LEAST for name in upstream_parsers.ROUTINES[family].split()]
    without = upstream_parsers.WITHOUT_VOCABULARY
    made = entries(
        [f"{name} {least_of(name).partition(' --vocab')[0] if name in without else least_of(name)}" for name in names]
    )
    refused = [entry for entry in made if not entry.case]
    assert not any(entry.problem for entry in refused)
    assert all(": " in entry.missing for entry in refused), refused
    assert (len(names), len({entry.case.routine.name for entry in made if entry.case})) == (49, 41)
