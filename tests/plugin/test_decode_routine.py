import inspect
import math
from dataclasses import replace
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from pytest_flashinfer_perf import check
from pytest_flashinfer_perf.case import Case
from pytest_flashinfer_perf.routine import How, Shape
from pytest_flashinfer_perf.routines.attention import _paged, _shared
from pytest_flashinfer_perf.routines.attention.decode import SMOKE, BatchDecode, decode
from pytest_flashinfer_perf.strategies import params_of
from pytest_flashinfer_perf.timing import cold
from pytest_flashinfer_perf.walk import obstacle

CPU = torch.device("cpu")
few = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def made(params, seed=42):
    return decode.inputs(params, torch.Generator().manual_seed(seed), CPU)


def sdpa_in_double(p, x):
    """Another way to the answer: one token's keys at a time, found by its page and slot."""
    rows = []
    for i, length in enumerate(x.seq_lens.tolist()):
        pages = [x.table.block_tables[i, t // p.page_size] for t in range(length)]
        k, v = (
            torch.stack([side[page, :, t % p.page_size] for t, page in enumerate(pages)], 1).double()
            for side in (x.kv.k, x.kv.v)
        )
        for j in range(p.s_qo):
            seen = length - p.s_qo + j + 1 if p.masked else length
            q = x.q[i * p.s_qo + j].double()[:, None]
            k_seen, v_seen = (t[:, :seen].repeat_interleave(p.group, 0) for t in (k * x.kv.k_scale, v * x.kv.v_scale))
            rows.append(torch.nn.functional.scaled_dot_product_attention(q, k_seen, v_seen)[:, 0])
    return torch.stack(rows)


@few
@given(params_of(BatchDecode))
def test_the_reference_is_attention(p):
    x = made(p)
    assert torch.allclose(decode.reference(p, x)[0].double(), sdpa_in_double(p, x), rtol=1e-4, atol=1e-5)


@few
@given(params_of(BatchDecode))
def test_the_torch_backend_agrees_with_the_reference(p):
    x = made(p)
    check.poison(decode.outputs(x))
    decode.backends["torch"].build(p, x, How("torch", cuda_graph=False)).launch(x)
    expected = decode.reference(p, x)
    assert check.compare(x.out, expected[0], decode.tolerance(p, "torch")).rule == ""


def swapped_heads(_p, x):
    return x._replace(q=x.q.flip(1))


def stale_page(p, x):
    last = x.table.block_tables[0, (int(x.seq_lens[0]) - 1) // p.page_size]
    for side in (x.kv.k, x.kv.v):
        side[last] = 0
    return x


def dropped_scale(_p, x):
    return x._replace(kv=x.kv._replace(v_scale=1.0))


def one_token_short(_p, x):
    return x._replace(seq_lens=x.seq_lens - 1)


@pytest.mark.parametrize("fault", [swapped_heads, stale_page, dropped_scale, one_token_short])
def test_a_wrong_kernel_is_caught(fault):
    p = replace(SMOKE, kv_dtype="fp8_e4m3" if fault is dropped_scale else "bfloat16", s_kv=70)
    x = made(p)
    expected = decode.reference(p, x)
    broken = fault(p, x)
    decode.backends["torch"].build(p, broken, How("torch", cuda_graph=False)).launch(broken)
    assert check.compare(broken.out, expected[0], decode.tolerance(p, "torch")).rule


@few
@given(params_of(BatchDecode))
def test_work_is_counted_pair_by_pair(p):
    x = made(p)
    lens = x.seq_lens.tolist()
    pairs = sum(n - (p.s_qo - 1 - j if p.masked else 0) for n in lens for j in range(p.s_qo))
    cost = decode.cost(p, x)
    assert cost.flops == 2 * pairs * p.num_qo_heads * (p.head_dim_qk + p.head_dim_out)
    kv = sum(lens) * p.num_kv_heads * 2 * p.head_dim_qk * x.kv.pages.itemsize
    assert kv < cost.bytes <= kv + x.q.nbytes + x.out.nbytes + 4 * (x.table.indices.numel() + 2 * p.batch_size + 1)


@few
@given(params_of(BatchDecode))
def test_the_footprint_covers_what_is_allocated(p):
    stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in cold.tensors(made(p))}
    assert sum(stored.values()) <= decode.footprint(p)


@few
@given(params_of(BatchDecode))
def test_a_case_is_the_same_bytes_every_time(p):
    once, again = (cold.tensors(made(p)._replace(out=None)) for _ in range(2))
    for one, other in zip(once, again, strict=True):
        assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def test_another_seed_is_another_case():
    assert not torch.equal(made(SMOKE, 1).q, made(SMOKE, 2).q)


@few
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
    lens = _paged.lengths(2000, longest=9, shortest=3, random=True, rand=rand)
    assert (lens.min(), lens.max()) == (3, 9)


def unpacked(mask, s_qo):
    halves = mask.view(torch.int16).to(torch.int64) & 0xFFFF
    return [[bool(halves[row, col // 16] >> (col % 16) & 1) for col in range(s_qo)] for row in range(s_qo)]


@pytest.mark.parametrize("s_qo", [2, 17, 33])
@pytest.mark.parametrize("causal", [True, False])
def test_a_draft_mask_unpacks_to_what_was_meant(s_qo, causal):
    mask = _paged.draft_mask(3, s_qo, causal, CPU)
    assert mask.shape == (3, s_qo, 2 * math.ceil(s_qo / 32))
    expected = [[col <= row or not causal for col in range(s_qo)] for row in range(s_qo)]
    assert unpacked(mask[2], s_qo) == expected


BINDINGS = {
    "fa2": "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "fa2_tc": "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "fa3": "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "auto": "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "trtllm-gen": "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
    "cudnn": "flashinfer.decode.cudnn_batch_decode_with_kv_cache",
    "trtllm-native": "flashinfer.decode.trtllm_batch_decode_with_kv_cache",
    "prims-ts": "flashinfer.attention.prims_ts.BatchDecodePagedTSWrapper",
}


def accepted(backend, device):
    """The smoke shapes that this backend's limits let through: the others never reach the library."""
    shapes = (shape.params for shape in decode.tiers["smoke"]())
    return [p for p in shapes if not list(decode.backends[backend].limits(p, backend, device))]


@pytest.mark.parametrize("backend", BINDINGS)
def test_calls_fit_the_librarys_signatures(backend, hopper, monkeypatch):
    """Every argument a backend passes binds to the installed API; nothing is launched."""
    path, _, name = BINDINGS[backend].rpartition(".")
    real = getattr(pytest.importorskip(path, exc_type=ImportError), name)
    api = create_autospec(real)
    if isinstance(real, type):
        plan = api.return_value.plan
        plan.__signature__, plan.__qualname__ = inspect.signature(real.plan), real.plan.__qualname__
    if hasattr(real, "_plan_impl"):
        signature = inspect.signature(real._plan_impl)
        api.return_value.plan.side_effect = lambda *args, **kwargs: signature.bind(None, *args, **kwargs) and None
        api.return_value._backend = "fa2"
    monkeypatch.setattr(f"{path}.{name}", api)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)  # the mock keeps every one it is given
    shapes = accepted(backend, hopper)
    for p in shapes:
        x = made(p)
        decode.backends[backend].build(p, x, How(backend, cuda_graph=True)).launch(x)
    assert api.call_count == len(shapes) >= 5


def test_every_backend_is_declared():
    names = {"fa2", "fa2_tc", "fa3", "auto", "cudnn", "trtllm-gen", "trtllm-native", "prims-ts", "torch"}
    assert set(decode.backends) == names
    assert decode.backend_named("trtllm-gen-native") is decode.backends["trtllm-native"]


@pytest.mark.parametrize(
    ("backend", "change", "sentence"),
    [
        ("fa2", {"num_qo_heads": 10}, "no kernel for 5 query heads per KV head: use fa2_tc"),
        ("fa2", {"s_qo": 2}, "one token per request"),
        ("fa2_tc", {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"}, "q_dtype is fp8_e4m3: use fa3"),
        ("fa3", {"kv_dtype": "fp8_e4m3"}, "both in fp8, or neither"),
        ("fa3", {"s_qo": 2}, "one token per request"),
        ("auto", {"s_qo": 2, "spec_dec_mask": "full"}, "spec_dec_mask full is not available"),
        ("auto", {"out_dtype": "fp8_e4m3"}, "no fp8 output"),
        ("cudnn", {"kv_dtype": "fp8_e4m3"}, "bfloat16 and float16 only"),
        ("cudnn", {"out_dtype": "float16"}, "of one type"),
        ("trtllm-native", {"page_size": 1}, "16, 32, 64 or 128 tokens, not 1"),
        ("trtllm-native", {"q_dtype": "fp8_e4m3"}, "xqa here"),
    ],
)
def test_a_limit_is_a_sentence_with_a_way_out(hopper, backend, change, sentence):
    pytest.importorskip("flashinfer")
    limits = decode.backends[backend].limits(replace(SMOKE, **change), backend, hopper)
    assert sentence in next(iter(limits))


def test_a_shape_that_cannot_fit_is_refused_with_the_estimate(cpu):
    huge = replace(SMOKE, batch_size=1 << 20, s_kv=1 << 20)
    reason = obstacle(Case(decode, Shape(huge), "torch"), cpu)
    assert "GiB, " in reason
    assert "are free on cpu" in reason
