"""Some rows of an answer: the same numbers, less work, and the rows where parts begin and end."""

import pytest
import torch
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.checking.check import Rows, Sample
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.strategies import params_of

CPU = torch.device("cpu")
every_routine = pytest.mark.parametrize("name", [name for name, one in all_routines().items() if one.rows])


def made(routine, p):
    return routine.inputs(p, torch.Generator().manual_seed(0), CPU)


def test_only_answers_without_products_are_always_looked_at_whole():
    assert {routine.family for routine in all_routines().values() if routine.rows is None} <= {"comm"}


@every_routine
@few(8)
@given(st.data())
def test_a_sample_is_the_same_numbers(name, data):
    routine = all_routines()[name]
    p = data.draw(params_of(routine.params))
    x = made(routine, p)
    rows = routine.rows(p, x)
    whole = routine.reference(p, x)
    assert whole[0].numel() % rows.count == 0
    part = check.within(1, 2, rows, seed=3)
    if part is None:
        assert rows.count <= 2
        return
    for some, everything in zip(routine.reference(p, x, part.chosen), whole, strict=True):
        assert torch.allclose(some, part.of(everything, some), rtol=1e-4, atol=1e-5)


LARGE = {
    "attention": {"batch_size": 12, "s_kv": 96, "num_qo_heads": 8, "head_dim_qk": 64},
    "gemm": {"m": 96, "n": 128, "k": 256},
    "moe": {"num_tokens": 96, "hidden_size": 128, "intermediate_size": 128, "num_experts": 16, "top_k": 2},
}
OWN = {
    "BatchDecodeWithPagedKVCacheWrapper": {"page_size": 16, "num_kv_heads": 2},
    "BatchPrefillWithPagedKVCacheWrapper": {"page_size": 16, "num_kv_heads": 2, "s_qo": 32},
    "BatchPrefillWithRaggedKVCacheWrapper": {"num_kv_heads": 2, "s_qo": 32},
    "BatchMLAPagedAttentionWrapper": {"page_size": 16, "head_dim_ckv": 128, "head_dim_kpe": 64},
    "vllm_decode": {"max_seq_len": 96},
    "bmm_fp8": {"batch_size": 4},
    "bmm_bf16": {"batch_size": 4},
}
GROUPED = {"group_size": 4, "ragged": True}


def large(routine):
    shape = {**LARGE[routine.family], **OWN.get(routine.name, {})}
    known = routine.params.__dataclass_fields__
    routed = {"routing_method": "topk", "routed_scaling_factor": 1.0} if "routing_method" in known else {}
    grouped = GROUPED if "group_size" in known and routine.family == "gemm" else {}
    return routine.params(**{n: v for n, v in {**shape, **routed, **grouped}.items() if n in known})


def flops(routine, p, x, *rows):
    with FlopCounterMode(display=False) as counter:
        routine.reference(p, x, *rows)
    return counter.get_total_flops()


@every_routine
def test_the_work_of_the_reference_falls_with_the_sample(name):
    routine = all_routines()[name]
    p = large(routine)
    x = made(routine, p)
    whole = flops(routine, p, x)
    part = check.within(whole / 10, whole, routine.rows(p, x), seed=1)
    share = len(part.chosen) / part.count
    assert share <= 0.25
    assert 0 < flops(routine, p, x, part.chosen) <= 2 * share * whole


@given(st.integers(3, 400), st.integers(0, 50), st.floats(1e-3, 0.9), st.integers(0, 99))
def test_the_first_and_the_last_row_and_edges_are_in_it(count, edges, share, seed):
    rand = torch.Generator().manual_seed(edges)
    rows = Rows(count, torch.randint(count, (edges,), generator=rand).unique())
    part = check.within(share, 1.0, rows, seed)
    chosen = part.chosen.tolist()
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= max(2, share * count)
    assert {0, count - 1} <= set(chosen)
    again = check.within(share, 1.0, rows, seed)
    assert torch.equal(part.chosen, again.chosen)
    if len(chosen) >= 2 * len(rows.edges) + 2:
        assert set(rows.edges.tolist()) <= set(chosen)


def test_what_the_budget_is_enough_for_is_looked_at_whole():
    rows = Rows(10, torch.tensor([0, 9]))
    assert check.within(1.0, 1.0, rows, 0) is None
    assert check.within(1.0, 0.0, rows, 0) is None


def test_an_element_of_a_sample_is_found_in_the_output():
    part = Sample(torch.tensor([1, 5]), 6)
    output = torch.arange(6 * 4).reshape(2, 3, 4)
    picked = part.of(output, torch.empty(2, 4))
    assert picked[1, 2] == output[1, 2, 2]
    assert part.locate(6, output) == (1, 2, 2)
