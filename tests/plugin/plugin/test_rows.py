"""A measured case is a row with all that is known of it; one that was not measured leaves none, and its reason."""

import json
from dataclasses import replace
from importlib import metadata

import pytest
import torch
from decode_cases import DECODE, TEST, TINY
from made import typed

from pytest_flashinfer_perf.session import benchmark_rows

UNUSED = ("-W", "error:Benchmark fixture was not used")
SHAPE = f"{DECODE}/b2-s16-h4-kv2-d16-p4"
PROMISED = """routine backend resolved_backend family tflops tb_per_sec spread flops bytes sol_pct bound
    instrument cold_l2 rotations kernels launches busy_s span_s cycles sm_ghz throttle power_w cuda_graph device seed
    status refcheck peak_memory_bytes case case_tag repro repro_upstream gpu_uuid"""
EXPECTED = {
    "routine": DECODE,
    "family": "attention",
    "backend": "torch",
    "resolved_backend": "sdpa",
    "instrument": "wall",
    "cold_l2": "rotate",
    "cuda_graph": False,
    "device": "cpu",
    "seed": 42,
    "refcheck": "passed",
    "case_tag": "mine",
    "case": f"{SHAPE}-torch",
    "gpu_uuid": None,
    "cycles": None,
    "kernels": None,
    "sol_pct": None,
}


def test_a_case_is_measured_checked_and_recorded(session):
    done = session("--perf-backends=torch", "--perf-case-tag=mine", test_decode=TEST)
    assert done.outcomes == {"passed": 2}
    row = done["test_decode[b2-s16-h4-kv2-d16-p4-torch]"]
    assert row["fullname"] == "test_decode.py::test_decode[b2-s16-h4-kv2-d16-p4-torch]"
    assert (row["stats"]["rounds"], len(row["stats"]["data"])) == (3, 3)
    assert (row["options"]["timer"], row["group"], row["params"]["backend"]) == ("wall", SHAPE, "torch")
    assert all(isinstance(value, (str, int, float, bool)) for value in row["params"].values())
    info = row["extra_info"]
    assert set(PROMISED.split()) <= set(info)
    assert {name: info[name] for name in EXPECTED} == EXPECTED
    assert info["tflops"] == pytest.approx(info["flops"] / row["stats"]["median"] / 1e12)
    assert info["tb_per_sec"] == pytest.approx(info["bytes"] / row["stats"]["median"] / 1e12)
    plugin = metadata.version("pytest-flashinfer-perf")
    written = {"schema": 2, "plugin": plugin, "roofs": {"cpu": {}}, "unmeasured": []}
    assert done.document["flashinfer_perf"] == written
    assert {"torch", "flashinfer", "driver", "cuda", "cudnn", "cupti", "gpu"} <= set(done.document["machine_info"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_backends_of_a_shape_are_a_group_unless_the_test_has_another(session, workers):
    """So pytest-benchmark's own tables show them side by side."""
    marks = "import pytest\n@pytest.mark.perf_cases('mm_bf16', '--m 2 --n 16 --k 32')\n"
    done = session(
        *workers,
        "--perf-backends=torch",
        test_ours=f"{marks}def test_ours(perf, case): perf(case)\n",
        test_theirs=f"{marks}@pytest.mark.benchmark(group='mine')\ndef test_theirs(perf, case): perf(case)",
    )
    assert {row["group"] for row in done.rows.values()} == {"mm_bf16/m2-n16-k32", "mine"}
    assert next(row for name, row in done.rows.items() if name.startswith("test_theirs"))["group"] == "mine"


OWN = """
import json
from pathlib import Path

import pytest
import torch

X = torch.ones(8)

@pytest.mark.parametrize("stated", [{}, {"flops_dtype": "tf32"}], ids=["inferred", "stated"])
def test_fp32(perf, stated): assert perf.time(torch.neg, X, flops=8, **stated).flops_dtype

def test_keyword(perf): perf.time(lambda x: -x, x=X.half(), flops=8)
def test_int8(perf): perf.time(torch.neg, X.to(torch.int8), flops=8)

def test_bytes_alone(perf):
    Path("samples.json").write_text(json.dumps(perf.time(torch.neg, X, bytes=64, measuring={"iters": 50}).samples))

def test_matmul(perf):
    a = torch.randn(32, 32)
    out = torch.empty(32, 32)
    seen = perf.time(torch.mm, a, a, out=out, flops=2 * 32**3, bytes=3 * a.nbytes, reference=a @ a)
    assert seen.instrument == "wall" and len(seen.samples) == 3 and seen.tflops and seen.tb_per_sec
"""


def test_own_kernels_are_recorded_with_their_work_its_type_and_each_sample(session, pytester):
    """The type is that of the first tensor, unless it is stated."""
    done = session("--perf-case-tag=mine", test_own=OWN)
    assert (done.outcomes, done.code) == ({"passed": 6}, 0)
    assert {name: row["extra_info"]["flops_dtype"] for name, row in done.rows.items()} == {
        "test_fp32[inferred]": "float32",
        "test_fp32[stated]": "tf32",
        "test_keyword": "float16",
        "test_int8": "int8",
        "test_bytes_alone": None,
        "test_matmul": "float32",
    }
    assert done["test_bytes_alone"]["stats"]["data"] == json.loads((pytester.path / "samples.json").read_text())
    info = done["test_matmul"]["extra_info"]
    assert (info["refcheck"], info["flops"], info["case_tag"]) == ("passed", 2 * 32**3, "mine")


def test_a_type_of_flops_that_nobody_knows_is_a_sentence_with_the_known_ones(session):
    done = session(
        test_own="""
        import torch

        def called(x): raise AssertionError("timed all the same")
        def test_own(perf): perf.time(called, torch.ones(8), flops=8, flops_dtype="TF32")
        def test_torch(perf): perf.time(called, torch.ones(8), flops=8, flops_dtype=torch.float16)
        """
    )
    assert done.outcomes == {"failed": 2}
    known = "bfloat16, float16, float32, fp8_e4m3, fp8_e5m2, tf32, fp4, int8"
    done.says(
        f"E *ValueError: flops_dtype: unknown name 'TF32', did you mean *? known are {known}",
        f"E *ValueError: flops_dtype: unknown name 'torch.float16', did you mean float16? known are {known}",
    )


MARKED = f"""
import pytest

@pytest.mark.requires_sm("90")
@pytest.mark.perf_cases({DECODE!r}, {TINY!r})
def test_marked(perf, case): perf(case)

@pytest.mark.perf_cases({DECODE!r}, {TINY!r} + " --batch_size 99999999 --s_kv 99999")
def test_large(perf, case): perf(case)

@pytest.mark.xfail(strict=True)
def test_known(perf): raise AssertionError
"""


def test_a_case_without_a_row_is_in_the_json_with_its_reason(session):
    """Whether it asked to be measured or was stopped before; an expected failure is none that strict skips fail."""
    asked = ("--perf-backends=torch,fa3", "--perf-strict-skips=*known*", "-rs", *UNUSED)
    done = session(*asked, test_decode=TEST, test_marked=MARKED)
    assert done.outcomes == {"passed": 2, "skipped": 6, "xfailed": 1}
    gpu = "needs an NVIDIA GPU, this run is on the CPU"
    done.says("*6 cases skipped*", f"*3  fa3 {gpu}*", f"SKIPPED*fa3 {gpu}")
    assert len(done.rows) == 2
    left = done.document["flashinfer_perf"]["unmeasured"]
    reasons = {(one["case"], one["outcome"], one["reason"]) for one in left}
    assert (f"{SHAPE}-fa3", "skipped", f"fa3 {gpu}") in reasons
    assert (f"{SHAPE}-torch", "skipped", f"this test {gpu}") in reasons
    assert [case for case, _, reason in reasons if reason.endswith("GiB are free on cpu")] == [
        f"{DECODE}/b99999999-s99999-h4-kv2-d16-p4-torch"
    ]


@pytest.mark.parametrize("value", [float("nan"), torch.float16, {(1, 2): 3}])
def test_a_row_is_json_or_an_error_in_its_test(value):
    with pytest.raises(ValueError, match="JSON values only"):
        benchmark_rows.checked(replace(typed(), facts={"x": value}))
