"""Backends that are wrong, planted beside the honest one: the check of a case must see each."""

import itertools
from dataclasses import replace

import pytest
import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine.one_case import run_case
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention.decode import BatchDecode, decode
from pytest_flashinfer_perf.routines.attention.prefill_paged import PagedPrefill, paged_prefill
from pytest_flashinfer_perf.routines.gemm.bmm import BmmFp8, bmm_fp8
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import MmBf16, mm_bf16
from pytest_flashinfer_perf.routines.moe.cutlass import CutlassFusedMoe, cutlass_moe
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Backend, Built, Shape

HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim_qk": 64}
DECODE = BatchDecode(page_size=16, batch_size=3, s_kv=40, **HEADS)
PREFILL = PagedPrefill(page_size=16, batch_size=2, s_qo=20, s_kv=50, causal=True, **HEADS)
PRODUCT = MmBf16(m=24, n=64, k=4096)
FP8 = BmmFp8(batch_size=2, m=24, n=64, k=128)
MOE = CutlassFusedMoe(num_tokens=9, hidden_size=64, intermediate_size=64, num_experts=4, top_k=2)
ROUTINES = {type(p): r for r, p in ((decode, DECODE), (mm_bf16, PRODUCT), (bmm_fp8, FP8), (cutlass_moe, MOE))}
ROUTINES[PagedPrefill] = paged_prefill
EVERY = (DECODE, PREFILL, PRODUCT, FP8, MOE)
LOOK = Checking(refcheck="only")


def seen(params, made, checking=LOOK):
    """What the check says of a backend that is `torch`, but for a fault: `made()(honest, x)` launches it."""
    routine = ROUTINES[type(params)]

    def build(p, x, how):
        honest, fault = routine.backends["torch"].build(p, x, how).launch, made()
        return Built(lambda x: fault(honest, x), "planted")

    case = Case(replace(routine, backends={"planted": Backend("planted", build)}), Shape(params), "planted")
    return run_case(case, Measuring(iters=3, warmup=1), checking, devices.find("cpu")).measurement


def right(honest, x):
    honest(x)


def always(fault):
    return lambda: fault


def after(spoil):
    """Runs honestly, then spoils the output."""

    def launch(honest, x):
        honest(x)
        spoil(x.out)

    return always(launch)


def instead(change):
    """Runs honestly on other inputs than those it was given."""
    return always(lambda honest, x: honest(change(x)))


def stale():
    """Answers the call before this one."""
    kept = []

    def launch(honest, x):
        honest(x)
        kept.append(x.out.clone())
        x.out.copy_(kept[-2:][0])

    return launch


def cached():
    """Takes the same pointers for the same problem."""
    known = {}

    def launch(honest, x):
        key = tuple(t.data_ptr() for t in x if isinstance(t, torch.Tensor))
        if key not in known:
            honest(x)
            known[key] = x.out.clone()
        x.out.copy_(known[key])

    return launch


def overwriting(honest, x):
    """Uses an input as its scratch."""
    honest(x)
    (x.kv.pages if hasattr(x, "kv") else x.b).view(torch.uint8).view(-1)[-1] += 1


UNTIL_TIMED = 1 + 1 + 1  # the check's, the warm-up, the timed call of the last placement


def for_some_calls(calls, fault):
    """Is right in its first calls only."""

    def made():
        turns = itertools.chain([right] * calls, itertools.repeat(fault))

        def launch(honest, x):
            next(turns)(honest, x)

        return launch

    return made


def in_bf16(_honest, x):
    """Adds up 16 columns at a time, in bfloat16."""
    total = torch.zeros_like(x.out)
    for a, b in zip(x.a.split(16, -1), x.b.split(16, -1), strict=True):
        total += (a.float() @ b.float().mT).to(x.out.dtype)
    x.out.copy_(total)


def causal_by_one_key_more(_honest, x):
    for i, (rows, keys) in enumerate(x.lens.spans):
        count, tokens = rows.stop - rows.start, keys.stop - keys.start
        k, v = (_pages(side, x.table.block_tables[i], tokens) for side in (x.k, x.v))
        ends = torch.arange(tokens - count, tokens)[None] + 2
        gathered = (k[None].float(), v[None].float())
        x.out[rows] = _shared.folded_sdpa(x.q[rows][None], gathered, ends, PREFILL.scale)[0].to(x.out.dtype)


def _pages(side, owned, tokens):
    return side[owned].transpose(0, 1).flatten(1, 2)[:, :tokens]


def one_wrong(out):
    out.view(-1)[7] += 4 * out.float().square().mean().sqrt().to(out.dtype)


def other_kv_head(x):
    return x._replace(kv=x.kv._replace(k=x.kv.k.roll(1, 1), v=x.kv.v.roll(1, 1)))


nothing = lambda _honest, _x: None  # noqa: E731
FAULTS = {
    "global scale 1.02": (EVERY, after(lambda out: out.mul_(1.02))),
    "x2": (EVERY, after(lambda out: out.mul_(2))),
    "zeros": (EVERY, after(torch.Tensor.zero_)),
    "one NaN": (EVERY, after(lambda out: out.view(-1)[7].fill_(torch.nan))),
    "one wrong element": (EVERY, after(one_wrong)),
    "last row missing": (EVERY, after(lambda out: out[-1].zero_())),
    "nothing written": (EVERY, always(nothing)),
    "last partial page unread": ([DECODE], instead(lambda x: x._replace(seq_lens=x.seq_lens // 16 * 16))),
    "kv head mapped wrong": ([DECODE], instead(other_kv_head)),
    "causal mask off by one": ([PREFILL], always(causal_by_one_key_more)),
    "stale output of the previous call": (EVERY, stale),
    "cached answer for the same pointers": (EVERY, cached),
    "accumulated in bf16": ([PRODUCT], always(in_bf16)),
    "input overwritten": ([DECODE, PRODUCT, FP8], always(overwriting)),
}
EACH = [pytest.param(p, made, id=f"{name}-{type(p).__name__}") for name, (ps, made) in FAULTS.items() for p in ps]


@pytest.mark.parametrize(("params", "made"), EACH)
def test_a_planted_fault_is_caught(params, made):
    with pytest.raises(WrongAnswerError):
        seen(params, made)


@pytest.mark.parametrize("params", EVERY, ids=lambda p: type(p).__name__)
def test_an_honest_backend_is_not(params):
    assert seen(params, always(right)).verdict.faults == ()


def test_a_call_that_goes_wrong_while_it_is_timed_is_caught():
    with pytest.raises(WrongAnswerError, match="of a timed call, output 0"):
        seen(DECODE, for_some_calls(UNTIL_TIMED - 1, after(torch.Tensor.zero_)()), Checking())


@pytest.mark.parametrize("made", [for_some_calls(UNTIL_TIMED, nothing), cached, stale])
@pytest.mark.parametrize("params", [DECODE, FP8, MOE], ids=lambda p: type(p).__name__)
def test_what_the_timed_calls_do_not_show_one_more_call_does(params, made):
    """By then the inputs are others, and the outputs are filled with NaN again."""
    with pytest.raises(WrongAnswerError, match=r"^of one more call with its activations negated"):
        seen(params, made, Checking())


def test_what_was_turned_is_turned_back():
    before = decode.inputs(DECODE, torch.Generator().manual_seed(42), torch.device("cpu")).q
    asked = []
    seen(DECODE, always(lambda honest, x: asked.append(x.q.clone()) or honest(x)), Checking())
    assert len(asked) > 4
    assert all(torch.equal(q, before) for q in asked[:-1])
    assert torch.equal(asked[-1], -before)


def test_a_wrong_answer_says_all_that_was_seen():
    with pytest.raises(WrongAnswerError) as wrong:
        seen(DECODE, after(lambda out: out.mul_(2)))
    what = ("elements differ by more than", "worst at [", "% of elements match", "rms of its row", "50 %:")
    why = ("explained by a scale: everything is multiplied by 2", "0 NaN, 0 infinite of")
    assert [part for part in (*what, *why) if part not in str(wrong.value)] == []


def test_a_sample_sees_what_is_in_it(monkeypatch):
    """The first and the last row always are."""
    monkeypatch.setattr(check, "BUDGET_CPU", 1e8)
    big = replace(PRODUCT, m=512, n=512)
    assert 2 <= len(seen(big, always(right)).sample.chosen) < 40
    with pytest.raises(WrongAnswerError, match=r"worst at \[511, "):
        seen(big, after(lambda out: out[-1].zero_()))
