"""What holds for every attention routine, without a GPU: reference, cost, inputs, and the arguments of each backend."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from drawing import few
from gemms import smoke
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.routines.attention.mla import mla
from pytest_flashinfer_perf.routines.attention.prefill_paged import paged_prefill
from pytest_flashinfer_perf.routines.attention.prefill_ragged import ragged_prefill
from pytest_flashinfer_perf.spec import case, flags
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.routine import LaunchOptions
from pytest_flashinfer_perf.strategies import params_of

ROUTINES = (decode, paged_prefill, ragged_prefill, mla)
CPU = torch.device("cpu")


def made(routine, params, seed=42):
    return routine.inputs(params, torch.Generator().manual_seed(seed), CPU)


class Request(NamedTuple):
    """One request, for attention a second time and in another way: token by token, in double precision.

    Scales are applied, a key and value head for each KV head, a row's last visible token."""

    q: Tensor  # [rows, heads, dim]
    k: Tensor  # [tokens, KV heads, dim]
    v: Tensor
    last_seen: list[int]


def requests_of(routine, p, x):
    return _ragged(p, x) if routine is ragged_prefill else _paged(routine, p, x)


def _rows_of_end(count, length, masked):
    return [length - count + j if masked else length - 1 for j in range(count)]


def _paged(routine, p, x):
    """Token by token, each where the table says; of MLA one head, whose values are the first part of its keys."""
    prefills, latent = routine is paged_prefill, routine is mla
    lens = (x.lens.kv if prefills else x.seq_lens).tolist()
    starts = [0, *itertools.accumulate(x.lens.q.tolist() if prefills else [p.s_qo] * len(lens))]
    for i, n in enumerate(lens):
        if n == 0:  # a request without tokens has no rows
            continue
        at = [(x.table.block_tables[i, t // p.page_size], t % p.page_size) for t in range(n)]
        q = x.q[starts[i] : starts[i + 1]].double() * getattr(x, "q_scale", 1.0)
        if latent:
            k = torch.stack([x.kv[page, t].double() for page, t in at])[:, None] * x.kv_scale
            v, masked = k[..., : p.head_dim_ckv], True
        else:
            k, v = (torch.stack([side[page, :, t].double() for page, t in at]) for side in (x.kv.k, x.kv.v))
            k, v, masked = k * x.kv.k_scale, v * x.kv.v_scale, p.causal if prefills else p.masked
        yield Request(q, k, v, _rows_of_end(len(q), n, masked))


def _ragged(p, x):
    queries = x.q.double().split(x.lens.q.tolist())
    keys, values = (side.double().split(x.lens.kv.tolist()) for side in (x.k, x.v))
    for q, k, v in zip(queries, keys, values, strict=True):
        yield Request(q * x.q_scale, k * x.k_scale, v * x.v_scale, _rows_of_end(len(q), len(k), p.causal))


def truth(p, requests):
    """Outputs and base-2 LSE of every row."""
    answers = [_row(p, r, j) for r in requests for j in range(len(r.q))]
    return tuple(torch.stack(parts) for parts in zip(*answers, strict=True))


def _row(p, r, j):
    group = r.q.shape[1] // r.k.shape[1]
    k, v = (side[: r.last_seen[j] + 1].transpose(0, 1).repeat_interleave(group, 0) for side in (r.k, r.v))
    q = r.q[j][:, None]
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=p.scale)[:, 0]
    lse = torch.logsumexp((q @ k.transpose(1, 2))[:, 0] * p.scale, -1) / torch.log(torch.tensor(2.0))
    return out, lse


every_routine = pytest.mark.parametrize("routine", ROUTINES, ids=lambda r: r.name)


def drawn_for(routine, data):
    return data.draw(params_of(routine.params))


@every_routine
@few(25)
@given(data=st.data())
def test_the_reference_is_attention(routine, data):
    p = drawn_for(routine, data)
    x = made(routine, p)
    expected = truth(p, requests_of(routine, p, x))
    for mine, other in zip(routine.reference(p, x), expected, strict=False):
        assert torch.allclose(mine.double(), other, rtol=1e-4, atol=1e-5)
    assert len(routine.reference(p, x)) == 1 + p.return_lse


@every_routine
def test_the_reference_is_the_same_in_blocks(routine, monkeypatch):
    shape = {"s_qo": 40} if routine in (paged_prefill, ragged_prefill) else {"s_qo": 3}
    p = replace(smoke(routine)[0], return_lse=True, **shape)
    x = made(routine, p)
    whole = routine.reference(p, x)
    monkeypatch.setattr("pytest_flashinfer_perf.routines.attention._reference.SCORES_AT_ONCE", 1 << 12)
    for at_once, in_blocks in zip(whole, routine.reference(p, x), strict=True):
        assert torch.allclose(at_once, in_blocks, rtol=1e-5, atol=1e-6)


@every_routine
@few(25)
@given(data=st.data())
def test_work_is_counted_pair_by_pair_and_bytes_are_each_actual_token_once_and_little_else(routine, data):
    p = drawn_for(routine, data)
    x = made(routine, p)
    requests, cost = list(requests_of(routine, p, x)), routine.cost(p, x)
    pairs = sum(last + 1 for r in requests for last in r.last_seen)
    dims = (p.head_dim_ckv * 2 + p.head_dim_kpe) if routine is mla else (p.head_dim_qk + p.head_dim_out)
    assert cost.flops == 2 * pairs * p.num_qo_heads * dims
    per_token = p.head_dim if routine is mla else p.num_kv_heads * dims
    tokens = sum(len(r.k) for r in requests)
    outputs = sum(t.nbytes for t in routine.outputs(x))
    needed = tokens * per_token * TORCH[p.kv_dtype].itemsize + x.q.nbytes + outputs
    most_metadata = 4 * (tokens + 4 * p.batch_size + 3)
    assert needed < cost.bytes <= needed + most_metadata


@every_routine
@few(25)
@given(data=st.data())
def test_the_lse_is_held_to_a_thousandth(routine, data):
    p = replace(drawn_for(routine, data), return_lse=True)
    x = made(routine, p)
    lse, tolerance = routine.reference(p, x)[1], routine.tolerances(p, "fa2")[1]
    assert check.compare(lse, lse, tolerance).rule == ""
    assert check.compare(lse * torch.log(torch.tensor(2.0)), lse, tolerance).rule  # the natural logarithm


def dropped_scale(x):
    for name in ("v_scale", "kv_scale"):
        if name in x._fields:
            return x._replace(**{name: 1.0})
    return x._replace(kv=x.kv._replace(v_scale=1.0))


FAULTS = {
    "swapped heads": (lambda x: x._replace(q=x.q.flip(1)), {}),
    "shifted rows": (lambda x: x._replace(q=x.q.roll(1, 0)), {}),
    "dropped scale": (dropped_scale, {"kv_dtype": "fp8_e4m3"}),
}


@every_routine
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_kernel_is_caught(routine, name):
    fault, change = FAULTS[name]
    p = replace(smoke(routine)[0], **change)
    assert wrong(routine, p, fault(made(routine, p)), made(routine, p))


def wrong(routine, p, broken, right, run_as=None):
    """The rule that a backend breaks which computes on other inputs, or by other params, than the case's."""
    routine.backends["torch"].build(run_as or p, broken, LaunchOptions("torch", cuda_graph=False)).launch(broken)
    return check.compare(broken.out, routine.reference(p, right)[0], *routine.tolerances(p, "torch")).rule


@pytest.mark.parametrize("routine", [paged_prefill, ragged_prefill], ids=lambda r: r.name)
def test_a_missing_mask_is_caught(routine):
    p = replace(smoke(routine)[0], causal=True)
    assert wrong(routine, p, made(routine, p), made(routine, p), run_as=replace(p, causal=False))


@pytest.mark.parametrize("routine", [decode, paged_prefill, mla], ids=lambda r: r.name)
def test_an_unread_last_page_is_caught(routine):
    p = smoke(routine)[0]
    x = made(routine, p)
    length = int((x.lens.kv if routine is paged_prefill else x.seq_lens)[0])
    last = x.table.block_tables[0, (length - 1) // p.page_size]
    for side in (x.kv,) if routine is mla else (x.kv.k, x.kv.v):
        side[last] = 0
    assert wrong(routine, p, x, made(routine, p))


# Printed by upstream's own statements, of each routine from its first draw to the average, on a CPU and on an H200.
UPSTREAM_LENGTHS = json.loads((Path(__file__).parent / "upstream_lengths.json").read_text())
SMALLEST = "--random_actual_seq_len --num_qo_heads 1 --num_kv_heads 1 --page_size 16"
SMALLEST += " --head_dim_qk 1 --head_dim_ckv 1 --head_dim_kpe 1"


@pytest.mark.parametrize(
    ("device", "line"), [(device, line) for device, lines in UPSTREAM_LENGTHS.items() for line in lines]
)
def test_lengths_are_those_that_upstream_draws(device, line):
    where = device if torch.cuda.is_available() else "cpu"
    if where != device and "Prefill" not in line:
        pytest.skip("a GPU's random numbers cannot be had without one")
    read = case.parse(flags.split(f"--routine {line} {SMALLEST}"), all_routines())
    p, seed = read.shape.params, read.settings[0]
    rand = torch.Generator(where).manual_seed(seed)
    if "Prefill" in line:
        torch.rand(1, generator=rand, device=where)  # those are of a generator of their own
    x = read.routine.inputs(p, rand, torch.device(where))
    kv = x.lens.kv if "Prefill" in line else x.seq_lens
    expected = UPSTREAM_LENGTHS[device][line]
    assert kv.tolist() == expected["kv"]
    if "q" in expected:
        assert x.lens.q.tolist() == expected["q"]
    seen = read.routine.facts(p, x)
    assert seen["avg_actual_seq_len"] == expected["average"]
    assert seen["upstream_seq_lens"] is (device == "cuda" or "Prefill" in line)


FLASH = {"fa2", "fa2_tc", "fa3", "auto", "torch"}


@pytest.mark.parametrize("routine", ROUTINES, ids=lambda r: r.name)
def test_a_cache_in_e5m2_is_what_flash_attention_alone_reads(routine, hopper, blackwell):
    """By FlashInfer's own tests; that of MLA is in e4m3 alone."""
    p = replace(smoke(routine)[0], kv_dtype="fp8_e5m2")
    refusing = {
        name
        for name, backend in routine.backends.items()
        if all(list(backend.limits(p, name, device)) for device in (hopper, blackwell))
    }
    readers = {"torch"} if routine is mla else FLASH - {"fa3"}  # which needs queries in fp8, too
    assert set(routine.backends) - refusing == readers & set(routine.backends)
    made(routine, p)
