import csv
import math
from contextlib import nullcontext
from dataclasses import replace
from datetime import datetime
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from made import typed

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.extensions.vllm import table as vllm
from pytest_flashinfer_perf.extensions.vllm import vllm as for_programs
from pytest_flashinfer_perf.extensions.vllm import vllm_decode as module
from pytest_flashinfer_perf.extensions.vllm.vllm_decode import MODES, VllmDecode, to_float8, vllm_decode
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions, Shape
from pytest_flashinfer_perf.strategies import params_of

CPU = torch.device("cpu")
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

HEADER = (
    "batch_size,trtllm_mean,trtllm_std,baseline_mean,baseline_std,speedup_percent,q_dtype,kv_cache_dtype,"
    "output_dtype,block_size,num_kv_heads,head_size,max_seq_len"
)
PLAIN = VllmDecode(batch_size=4, max_seq_len=1024)


def made(p, seed=42):
    return vllm_decode.inputs(p, torch.Generator().manual_seed(seed), CPU)


def row(params, backend, mean):
    known = {"routine": "vllm_decode", "backend": backend, "device": "cuda:0", "shape": params.slug()}
    return typed(median=mean, params=Case(vllm_decode, Shape(params), backend).json_params, **known)


def test_the_sweep_is_the_documents():
    shapes = [shape.params for shape in vllm_decode.tiers["default"]()]
    assert {p.batch_size for p in shapes} == {1, 4, 8, 16, 32, 64, 128, 256}
    assert {p.max_seq_len for p in shapes} == {1 << n for n in range(10, 18)}
    assert len(shapes) == 8 * 8 * len(MODES)
    once = {(p.num_qo_heads, p.num_kv_heads, p.head_size, p.block_size, p.kv_layout) for p in shapes}
    assert once == {(64, 8, 128, 16, "HND")}
    assert {shape.params.kv_layout for shape in vllm_decode.tiers["full"]()} == {"HND", "NHD"}


@few
@given(params_of(VllmDecode))
def test_the_reference_is_attention_in_either_layout(p):
    x = made(p)
    expected = vllm_decode.reference(p, x)[0].double()
    for i, length in enumerate(x.seq_lens.tolist()):
        at = [(x.table.block_tables[i, t // p.block_size], t % p.block_size) for t in range(length)]
        k, v = (
            torch.stack([x.kv[b, s, :, t] if p.kv_layout == "HND" else x.kv[b, s, t] for b, t in at]).double()
            for s in (0, 1)
        )
        group = p.num_qo_heads // p.num_kv_heads
        heads = [side.repeat_interleave(group, 1).transpose(0, 1) * x.kv_scale for side in (k, v)]
        q = x.q[i].double()[:, None] * x.q_scale
        out = torch.nn.functional.scaled_dot_product_attention(q, *heads)[:, 0] / x.o_scale
        assert torch.allclose(expected[i], out, rtol=1e-4, atol=1e-4 * out.abs().max().item())


@few
@given(params_of(VllmDecode))
def test_requests_own_their_blocks_and_the_last_one_is_the_longest(p):
    x = made(p)
    blocks = x.table.block_tables.flatten().tolist()
    assert len(set(blocks)) == len(blocks)
    assert x.seq_lens[-1] == p.max_seq_len >= int(x.seq_lens.max())


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3"])
def test_a_cache_is_no_larger_than_vllms_whose_blocks_requests_share(dtype, monkeypatch):
    monkeypatch.setattr(module, "POOL_TOKENS", 400)
    p = replace(PLAIN, batch_size=9, max_seq_len=160, num_qo_heads=4, num_kv_heads=1, kv_dtype=dtype)
    x = made(p)
    assert len(x.kv) == p.blocks == 400 // 16
    assert all(len(set(of_one)) == 160 // 16 for of_one in x.table.block_tables.tolist())
    assert set(x.table.block_tables.flatten().tolist()) == set(range(p.blocks))
    assert vllm_decode.cost(p, x).bytes < vllm_decode.cost(p, made(replace(p, batch_size=1))).bytes * 9


@pytest.mark.parametrize(("heads", "chosen"), [(32, False), (40, True), (64, True)])
def test_the_baseline_is_on_tensor_cores_where_vllm_has_it_there(heads, chosen, monkeypatch):
    flashinfer = pytest.importorskip("flashinfer", exc_type=ImportError)
    wrapper = create_autospec(flashinfer.BatchDecodeWithPagedKVCacheWrapper)
    monkeypatch.setattr("flashinfer.BatchDecodeWithPagedKVCacheWrapper", wrapper)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)
    p = replace(PLAIN, max_seq_len=20, num_qo_heads=heads)
    vllm_decode.backends["baseline"].build(p, made(p), LaunchOptions("baseline", cuda_graph=False))
    assert wrapper.call_args.kwargs["use_tensor_cores"] is chosen


def test_to_float8_uses_a_tenth_of_the_range():
    values, scale = to_float8(torch.tensor([-2.0, 1.0, 0.5]))
    assert (values.dtype, values.float().abs().max()) == (torch.float8_e4m3fn, 44.0)  # 44.8, as e4m3 rounds it
    assert scale.item() == pytest.approx(2.0 / 44.8)


NVFP4 = replace(PLAIN, batch_size=3, max_seq_len=20, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", out_dtype="nvfp4")


@pytest.mark.parametrize("fault", ["unwritten", "doubled", "linear scales"])
def test_a_wrong_nvfp4_output_is_caught(fault):
    x = made(NVFP4)
    assert (x.out.shape, x.out_scales.shape) == ((3, 64, 64), (128, 64 * 128 // 16))
    check.poison(vllm_decode.outputs(x))
    if fault != "unwritten":
        vllm_decode.backends["torch"].build(NVFP4, x, LaunchOptions("torch", cuda_graph=False)).launch(x)
    if fault == "doubled":
        x.out_scales.copy_(x.out_scales.float() * 2)
    if fault == "linear scales":
        x.out_scales.copy_(x.out_scales.float().view(-1, 4).roll(1, 0).view(x.out_scales.shape))
    (answer,) = vllm_decode.decoded(NVFP4, vllm_decode.outputs(x))
    assert check.compare(answer, vllm_decode.reference(NVFP4, x)[0], *vllm_decode.tolerances(NVFP4, "torch")).rule


@pytest.mark.parametrize("mode", MODES)
def test_calls_fit_the_librarys_signatures(mode, monkeypatch):
    decode = pytest.importorskip("flashinfer.decode", exc_type=ImportError)
    native = create_autospec(decode.trtllm_batch_decode_with_kv_cache)
    monkeypatch.setattr("flashinfer.decode.trtllm_batch_decode_with_kv_cache", native)
    monkeypatch.setattr(_shared, "WORKSPACE_BYTES", 1 << 10)
    p = replace(PLAIN, max_seq_len=20, num_qo_heads=8, num_kv_heads=1, **mode)
    x = made(p)
    vllm_decode.backends["trtllm"].build(p, x, LaunchOptions("trtllm", cuda_graph=True)).launch(x)
    assert native.call_args.kwargs["kv_layout"] == "HND"
    assert (native.call_args.kwargs["o_sf_scale"] == 500.0) == (p.out_dtype == "nvfp4")


@pytest.mark.parametrize(
    ("change", "backend", "sentence"),
    [
        ({"q_dtype": "fp8_e4m3"}, "trtllm", "xqa here, which needs bfloat16"),
        ({"out_dtype": "nvfp4"}, "trtllm", "nvfp4 on compute capability 10.x only"),
        ({"block_size": 8}, "trtllm", "16, 32, 64 or 128 tokens, not 8"),
        ({"kv_dtype": "fp8_e4m3"}, "baseline", "measured unquantised"),
    ],
)
def test_a_limit_is_a_sentence(hopper, change, backend, sentence):
    limits = vllm_decode.backends[backend].limits(replace(PLAIN, **change), backend, hopper)
    assert sentence in next(iter(limits))


def test_a_mode_is_compared_with_the_baseline_of_its_shape():
    fp8 = replace(PLAIN, kv_dtype="fp8_e4m3")
    other = replace(PLAIN, batch_size=8)
    rows = [
        row(PLAIN, "trtllm", 80e-6),
        row(PLAIN, "baseline", 100e-6),
        row(fp8, "trtllm", 50e-6),
        row(other, "trtllm", 1.0),
        typed(routine=None, device="cuda:0"),
    ]
    plain, quantised = vllm.compared(rows)
    assert (plain.speedup, plain.unlike) == (pytest.approx(0.2), False)
    assert (quantised.speedup, quantised.unlike) == (pytest.approx(0.5), True)
    *_, first, second = vllm.lines(rows)
    assert "20.0%" in first
    assert "unlike" not in first
    assert second.endswith("50.0% unlike precision")


def test_the_csv_is_the_documents(tmp_path):
    rows = [row(replace(PLAIN, kv_dtype="fp8_e4m3"), "trtllm", 50e-6), row(PLAIN, "baseline", 100e-6)]
    path = vllm.write_csv(rows, tmp_path, datetime(2026, 11, 20, 14, 30, 22))  # noqa: DTZ001 - as a clock shows it
    assert path.name == "flashinfer_trtllm_benchmark_20261120_143022.csv"
    lines = path.read_text().splitlines()
    assert lines[0] == HEADER
    (line,) = csv.DictReader(lines)
    assert math.isclose(float(line["trtllm_mean"]), 0.05)
    assert math.isclose(float(line["speedup_percent"]), 0.5)
    assert (line["q_dtype"], line["kv_cache_dtype"]) == ("torch.bfloat16", "torch.float8_e4m3fn")
    assert vllm.write_csv(rows[:1], tmp_path, datetime(2026, 1, 1)) is None  # noqa: DTZ001
    assert len(list(tmp_path.iterdir())) == 1


OWN = """
import pytest

@pytest.mark.perf_cases("vllm_decode", "--batch_size 1 --max_seq_len 40 --num_qo_heads 4 --num_kv_heads 1")
def test_one(perf, case): perf(case)
"""
ROWS = """
from pytest_flashinfer_perf.session import reports

def pytest_runtest_logreport(report):
    row = reports.of(report).row
    if row:
        print("ROW", sorted(row.params), row.stats.mean > 0, row.stats.stddev >= 0)
"""


def test_a_row_carries_what_the_comparison_needs_and_a_csv_of_nothing_is_an_error(session):
    """From a case that was measured, through the report of its test."""
    done = session("--perf-backends=torch", "-s", "--perf-vllm-csv=.", conftest=ROWS, test_one=OWN)
    names = sorted(Case(vllm_decode, Shape(PLAIN), "torch").json_params)
    done.says(f"*ROW {str(names).replace('[', '[[]')} True True")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.says("*nothing written, no case of vllm_decode was measured as trtllm and as baseline")
    session("--perf-vllm-csv=nowhere").complains("*must be an existing folder, got 'nowhere'")


def test_what_cannot_run_raises_with_the_reason():
    if torch.cuda.is_available():
        pytest.skip("it can run here")
    with pytest.raises(CannotRunError, match="needs an NVIDIA GPU"):
        for_programs.benchmark_decode(torch.bfloat16, (None, for_programs.FP8_DTYPE, None), 2, 64)


@pytest.fixture
def measured(monkeypatch, blackwell):
    """What a program measures, with what it then calls once more for torch's peak of memory."""
    seen, once_more = [], []

    def measured(params, backend, measuring):
        seen.append((params, backend, measuring))
        if backend == "trtllm":
            for reason in vllm_decode.backends[backend].limits(params, backend, blackwell):
                raise CannotRunError(reason)
        return row(params, backend, 50e-6 if backend == "trtllm" else 100e-6)

    monkeypatch.setattr(for_programs, "_measured", measured)
    monkeypatch.setattr(for_programs, "_need_only_what_is_called", once_more.append)
    return seen, once_more


def test_blocks_that_trtllm_has_not_are_a_warning_and_the_loop_goes_on(measured):
    fp8, means = for_programs.FP8_DTYPE, {}
    for block_size in (8, 16):
        with nullcontext() if block_size == 16 else pytest.warns(UserWarning, match="blocks of 16, 32, 64 or 128"):
            result = for_programs.benchmark_decode(torch.bfloat16, (None, fp8, None), 2, 64, block_size=block_size)
        means[block_size] = result["trtllm_mean"], result["speedup_percent"], result["block_size"]
    assert means[16] == (0.05, 0.5, 16)
    assert f"{means[8][0]:.3f}ms {means[8][1]:.1%} {means[8][2]}" == "nanms nan% 8"
    assert [list(calls) for calls in measured[1]] == [["baseline"], ["baseline", "trtllm"]]


def test_torchs_peak_of_memory_is_that_of_the_calls_alone(monkeypatch):
    steps = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: steps.append(f"reset {device}"))
    torch_backend = vllm_decode.backends["torch"]

    def build(p, x, options):
        steps.append(f"{options.backend} of {p.batch_size}")
        return torch_backend.build(p, x, options)

    for name in ("baseline", "trtllm"):
        monkeypatch.setitem(vllm_decode.backends, name, replace(torch_backend, name=name, build=build))
    small = replace(PLAIN, max_seq_len=20, num_qo_heads=8, num_kv_heads=1)
    for_programs._need_only_what_is_called({"baseline": small, "trtllm": replace(small, batch_size=1)})
    assert steps == ["reset cpu", "baseline of 4", "trtllm of 1"]


def test_the_documents_dict_has_the_csvs_columns(measured):
    seen, _ = measured
    types = (for_programs.FP8_DTYPE, for_programs.FP8_DTYPE, for_programs.FP4_DTYPE)
    result = for_programs.benchmark_decode(torch.bfloat16, types, 64, 8192, warmup=20, trials=50)
    assert ",".join(result) == HEADER
    assert result["speedup_percent"] == pytest.approx(0.5)
    assert result["output_dtype"] == "torch.uint8"
    (plain, _, _), (fp4, _, measuring) = seen
    assert (fp4.out_dtype, plain.unquantised) == ("nvfp4", True)
    assert (measuring.iters, measuring.warmup) == (50, 20)
