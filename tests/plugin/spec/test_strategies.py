"""What a search draws: valid problems, small to large, with the edges that kernels trip over among them."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import MmBf16
from pytest_flashinfer_perf.spec.params import fields_of
from pytest_flashinfer_perf.strategies import sizes, strategies_for

every_routine = pytest.mark.parametrize("name", list(all_routines()))


def drawn(name, count=60, **fixed):
    seen = []

    @settings(max_examples=count, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(strategies_for(name, **fixed))
    def draw(params):
        seen.append(params)

    draw()
    return seen


@every_routine
def test_few_draws_are_lost_and_each_field_takes_many_values(name):
    seen = drawn(name, 120)
    assert len(seen) >= 114
    for field in fields_of(all_routines()[name].params):
        values = {getattr(params, field.name) for params in seen}
        if field.flag.most:
            assert len(values) >= min(8, len(set(sizes(field))) - 3), field.name
        elif len(field.flag.draw) > 1 and not field.optional and field.name != "num_qo_heads":
            assert len(values) >= len(set(field.flag.draw)) * 0.7, field.name


@pytest.mark.parametrize("name", ["BatchDecodeWithPagedKVCacheWrapper", "mm_bf16", "mm_fp4", "cutlass_fused_moe"])
def test_the_simplest_is_the_smallest(name):
    simplest = find(strategies_for(name), lambda _: True, settings=settings(max_examples=1))
    for field in fields_of(type(simplest)):
        value = getattr(simplest, field.name)
        if field.flag.most:
            assert value in (sizes(field)[0], 4, 32, 128), "the least, or what a type's blocks make of it"
        if field.type is bool:
            assert value is False


def test_edges_of_tiles_groups_of_five_and_what_is_no_multiple_are_likely():
    seen = drawn("mm_bf16", 150)
    assert sum(params.m in (1, 15, 16, 17, 63, 64, 65, 127, 128, 129) for params in seen) > 10
    assert 25 < sum(params.k % 16 == 0 for params in seen) < 125
    decode = drawn("BatchDecodeWithPagedKVCacheWrapper", 150)
    assert any(params.group == 5 for params in decode)
    assert any(params.s_kv % params.page_size == 1 for params in decode)
    assert any(params.empty_first for params in drawn("BatchPrefillWithRaggedKVCacheWrapper"))
    assert any(params.expert_load == "one" for params in drawn("cutlass_fused_moe"))
    assert any(params.ragged for params in drawn("grouped_mm_bf16"))


@given(st.sampled_from([f for f in fields_of(MmBf16) if f.flag.most]))
def test_sizes_are_in_order_and_of_every_octave(field):
    values = sizes(field)
    assert values == sorted(values)
    assert all(count == 1 or value % field.flag.step == 0 for value, count in Counter(values).items())
    assert (values[0], values[-1]) == (field.flag.minimum, field.flag.most)
    octaves = Counter(value.bit_length() for value in values)
    assert all(octaves[bits] >= 4 for bits in range(4, field.flag.most.bit_length()))


def test_fields_can_be_fixed():
    seen = drawn("BatchDecodeWithPagedKVCacheWrapper", 40, num_qo_heads=32, q_dtype="float16", kv_dtype="float16")
    assert {(p.num_qo_heads, p.q_dtype, p.kv_dtype) for p in seen} == {(32, "float16", "float16")}
