import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from drawing import few
from hypothesis import given

from pytest_flashinfer_perf.engine.one_case import obstacle
from pytest_flashinfer_perf.routines.attention import _requests, _shared
from pytest_flashinfer_perf.routines.attention.decode import SMOKE, BatchDecode, decode
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import LaunchOptions, Shape
from pytest_flashinfer_perf.strategies import params_of

CPU = torch.device("cpu")


def made(params, seed=42):
    return decode.inputs(params, torch.Generator().manual_seed(seed), CPU)


@few(60)
@given(params_of(BatchDecode))
def test_both_forms_of_a_page_table_say_the_same(p):
    table, lens = made(p).table, made(p).seq_lens.tolist()
    assert len(set(table.block_tables.flatten().tolist())) == table.block_tables.numel(), "a page has one owner"
    for i, length in enumerate(lens):
        used = math.ceil(length / p.page_size)
        start, end = table.indptr[i : i + 2].tolist()
        assert table.indices[start:end].tolist() == table.block_tables[i, :used].tolist()
        assert (used - 1) * p.page_size + table.last_page_len[i].item() == length


def test_random_lengths_stay_within_their_bounds():
    rand = torch.Generator().manual_seed(0)
    lens = _requests.draw(2000, longest=9, random=True, rand=rand)
    assert (lens.min(), lens.max()) == (1, 9)


def unpacked(mask, s_qo):
    halves = mask.view(torch.int16).to(torch.int64) & 0xFFFF
    return [[bool(halves[row, col // 16] >> (col % 16) & 1) for col in range(s_qo)] for row in range(s_qo)]


@pytest.mark.parametrize("s_qo", [2, 17, 33])
@pytest.mark.parametrize("causal", [True, False])
def test_a_draft_mask_unpacks_to_what_was_meant(s_qo, causal):
    mask = _shared.draft_mask(3, s_qo, causal, CPU)
    assert mask.shape == (3, s_qo, 2 * math.ceil(s_qo / 32))
    expected = [[col <= row or not causal for col in range(s_qo)] for row in range(s_qo)]
    assert unpacked(mask[2], s_qo) == expected


def test_a_shape_that_cannot_fit_is_refused_with_the_estimate(cpu):
    huge = replace(SMOKE, batch_size=1 << 20, s_kv=1 << 20)
    reason = obstacle(Case(decode, Shape(huge), "torch"), cpu)
    assert "GiB, " in reason
    assert "are free on cpu" in reason


class OlderWrapper:
    """As that of FlashInfer 0.5, whose plan has no type of outputs."""

    _backend = "auto"

    def __init__(self, *_workspace, **_buffers):
        self.planned = []

    def plan(self, *_table_and_heads, q_data_type, kv_data_type, block_tables):
        self.planned.append((q_data_type, kv_data_type, block_tables.dtype))


def test_a_flashinfer_that_takes_no_type_of_outputs_is_planned_without(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=OlderWrapper))
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1)
    p = next(iter(decode.tiers["smoke"]())).params
    plan = decode.backends["auto"].build(p, made(p), LaunchOptions("auto", cuda_graph=False)).plan
    plan()
    assert plan.func.__self__.planned == [(torch.bfloat16, torch.bfloat16, torch.int32)] * 2
