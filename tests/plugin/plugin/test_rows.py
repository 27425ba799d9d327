"""A measured case is a row with all that is known of it; one that was not measured leaves none, and its reason."""

import json
from dataclasses import replace
from importlib import metadata

import pytest
import torch
from decode_cases import DECODE, QUICK, TEST, TINY, rows
from made import typed

from pytest_flashinfer_perf.session import benchmark_rows

UNUSED = ("-W", "error:Benchmark fixture was not used")


def test_a_case_is_measured_checked_and_recorded(suite):
    result = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-json=run.json", "--perf-case-tag=mine")
    result.assert_outcomes(passed=2)
    row = rows(suite)[0]
    assert row["fullname"] == "test_decode.py::test_decode[b2-s16-h4-kv2-d16-p4-torch]"
    assert (row["stats"]["rounds"], len(row["stats"]["data"])) == (3, 3)
    assert row["options"]["timer"] == "wall"
    assert row["group"] == f"{DECODE}/b2-s16-h4-kv2-d16-p4"
    assert row["params"]["backend"] == "torch"
    assert all(isinstance(value, (str, int, float, bool)) for value in row["params"].values())
    info = row["extra_info"]
    expected = {
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
        "case": f"{DECODE}/b2-s16-h4-kv2-d16-p4-torch",
        "gpu_uuid": None,
        "cycles": None,
        "kernels": None,
        "sol_pct": None,
    }
    assert {name: info[name] for name in expected} == expected
    assert info["tflops"] == pytest.approx(info["flops"] / row["stats"]["median"] / 1e12)
    assert info["tb_per_sec"] == pytest.approx(info["bytes"] / row["stats"]["median"] / 1e12)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_backends_of_a_shape_are_a_group_unless_the_test_has_another(pytester, workers):
    """So pytest-benchmark's own tables show them side by side."""
    marks = "import pytest\n@pytest.mark.perf_cases('mm_bf16', '--m 2 --n 16 --k 32')\n"
    pytester.makepyfile(
        f"{marks}def test_ours(perf, case): perf(case)\n"
        f"{marks}@pytest.mark.benchmark(group='mine')\ndef test_theirs(perf, case): perf(case)"
    )
    pytester.runpytest(*QUICK, *workers, "--perf-backends=torch", "--benchmark-json=run.json")
    assert {row["name"].partition("[")[0]: row["group"] for row in rows(pytester)} == {
        "test_ours": "mm_bf16/m2-n16-k32",
        "test_theirs": "mine",
    }


def test_the_row_promises_these_fields(suite):
    suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-json=run.json")
    promised = """routine backend resolved_backend family tflops tb_per_sec spread flops bytes sol_pct bound
    instrument cold_l2 rotations kernels launches busy_s span_s cycles sm_ghz throttle power_w cuda_graph device seed
    status refcheck peak_memory_bytes case case_tag repro repro_upstream gpu_uuid"""
    assert set(promised.split()) <= set(rows(suite)[0]["extra_info"])
    whole = json.loads((suite.path / "run.json").read_text())
    plugin = metadata.version("pytest-flashinfer-perf")
    assert whole["flashinfer_perf"] == {"schema": 2, "plugin": plugin, "roofs": {"cpu": {}}, "unmeasured": []}
    assert {"torch", "flashinfer", "driver", "cuda", "cudnn", "cupti", "gpu"} <= set(whole["machine_info"])


def test_samples_are_bit_exact(pytester):
    pytester.makepyfile(
        """
        import json, torch
        from pathlib import Path

        def test_own(perf):
            seen = perf.time(torch.neg, torch.ones(1000))
            Path("samples.json").write_text(json.dumps(seen.samples))
        """
    )
    pytester.runpytest("--perf-iters=50", "--perf-device=cpu", "--benchmark-json=run.json").assert_outcomes(passed=1)
    assert rows(pytester)[0]["stats"]["data"] == json.loads((pytester.path / "samples.json").read_text())


def test_the_type_of_the_flops_is_that_of_the_first_tensor_or_the_one_stated(pytester):
    pytester.makepyfile(
        """
        import pytest
        import torch

        X = torch.ones(8)

        @pytest.mark.parametrize("stated", [{}, {"flops_dtype": "tf32"}], ids=["inferred", "stated"])
        def test_fp32(perf, stated): assert perf.time(torch.neg, X, flops=8, **stated).flops_dtype

        def test_keyword(perf): perf.time(lambda x: -x, x=X.half(), flops=8)
        def test_int8(perf): perf.time(torch.neg, X.to(torch.int8), flops=8)
        def test_bytes_alone(perf): perf.time(torch.neg, X, bytes=64)
        """
    )
    pytester.runpytest(*QUICK, "--benchmark-json=run.json").assert_outcomes(passed=5)
    found = {row["name"]: row["extra_info"]["flops_dtype"] for row in rows(pytester)}
    assert found == {
        "test_fp32[inferred]": "float32",
        "test_fp32[stated]": "tf32",
        "test_keyword": "float16",
        "test_int8": "int8",
        "test_bytes_alone": None,
    }


def test_a_type_of_flops_that_nobody_knows_is_a_sentence_with_the_known_ones(pytester):
    pytester.makepyfile(
        """
        import torch

        def called(x): raise AssertionError("timed all the same")
        def test_own(perf): perf.time(called, torch.ones(8), flops=8, flops_dtype="TF32")
        def test_torch(perf): perf.time(called, torch.ones(8), flops=8, flops_dtype=torch.float16)
        """
    )
    result = pytester.runpytest(*QUICK)
    result.assert_outcomes(failed=2)
    known = "bfloat16, float16, float32, fp8_e4m3, fp8_e5m2, tf32, fp4, int8"
    result.stdout.fnmatch_lines(
        [
            f"E *ValueError: flops_dtype: unknown name 'TF32', did you mean *? known are {known}",
            f"E *ValueError: flops_dtype: unknown name 'torch.float16', did you mean float16? known are {known}",
        ]
    )


def test_own_kernels_are_recorded_with_their_work(pytester):
    pytester.makepyfile(
        """
        import torch

        def test_matmul(perf):
            a = torch.randn(32, 32)
            out = torch.empty(32, 32)
            seen = perf.time(torch.mm, a, a, out=out, flops=2 * 32**3, bytes=3 * a.nbytes, reference=a @ a)
            assert seen.instrument == "wall" and len(seen.samples) == 3 and seen.tflops and seen.tb_per_sec
        """
    )
    pytester.runpytest(*QUICK, "--benchmark-json=run.json", "--perf-case-tag=mine").assert_outcomes(passed=1)
    written = rows(pytester)[0]["extra_info"]
    assert (written["refcheck"], written["flops"], written["case_tag"]) == ("passed", 2 * 32**3, "mine")


WRONG = f"""
import pytest, torch
from pytest_flashinfer_perf.spec.routine import Built
from pytest_flashinfer_perf.routines.attention.decode import decode

@decode.backend("planted")
def _planted(p, x, how):
    right = decode.backends["torch"].build(p, x, how).launch
    return Built(lambda x: right(x).mul_(1.02), "planted")

@pytest.mark.perf_cases({DECODE!r}, {TINY!r})
def test_decode(perf, case):
    perf(case)
"""


def test_a_wrong_answer_fails_and_leaves_no_row(pytester):
    pytester.makepyfile(test_wrong=WRONG)
    result = pytester.runpytest(*QUICK, "-k", "torch or planted", "--benchmark-json=run.json", *UNUSED)
    result.assert_outcomes(passed=1, failed=1, deselected=8)
    result.stdout.fnmatch_lines(
        ["wrong answer: output 0: *", "*run it again*", "pytest '--perf-case=*--backends planted *"]
    )
    assert [row["extra_info"]["backend"] for row in rows(pytester)] == ["torch"]


def test_a_skip_names_its_reason_and_leaves_no_row(suite):
    result = suite.runpytest(*QUICK, "--perf-backends=fa3,torch", "--benchmark-json=run.json", "-rs", *UNUSED)
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines(["*fa3 needs an NVIDIA GPU, this run is on the CPU*"])
    result.stdout.fnmatch_lines(["*2 cases skipped*", "*2  fa3 needs an NVIDIA GPU*"])
    assert len(rows(suite)) == 2


def test_what_cannot_fit_is_skipped_with_the_estimate_and_the_next_case_runs(pytester):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.perf_cases({DECODE!r}, {TINY!r} + " --batch_size 99999999 --s_kv 99999", {TINY!r})
        def test_decode(perf, case): perf(case)
        """
    )
    result = pytester.runpytest(*QUICK, "--perf-backends=torch", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.re_match_lines([r".*needs about \d+\.\d GiB, \d+\.\d GiB are free on cpu"])


def test_an_option_that_no_case_could_use_is_said_to_have_had_no_effect(session):
    asked = ("--perf-tactics=0.1", "--perf-autotune-cache=cache.json", "--perf-ranks=2")
    done = session("--perf-backends=torch", *asked, test_decode=TEST)
    assert (done.code, done.outcomes) == (0, {"passed": 2})
    told = [line.partition(" had no effect: none of the measured cases ") for line in done.out.splitlines()]
    assert [(name, why) for name, told, why in told if told] == [
        ("--perf-tactics", "has a choice of tactics"),
        ("--perf-autotune-cache", "asks FlashInfer's tuner"),
        ("--perf-ranks", "is marked by perf_ranks"),
    ]


def test_an_expected_failure_is_no_skip(pytester):
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.xfail(strict=True)
        def test_known(perf): raise AssertionError
        """
    )
    result = pytester.runpytest(*QUICK, "--perf-strict-skips=*", "-W", "ignore")
    result.assert_outcomes(xfailed=1)


@pytest.mark.parametrize("value", [float("nan"), torch.float16, {(1, 2): 3}])
def test_a_row_is_json_or_an_error_in_its_test(value):
    with pytest.raises(ValueError, match="JSON values only"):
        benchmark_rows.checked(replace(typed(), facts={"x": value}))


def test_a_case_without_a_row_is_in_the_json_with_its_reason(suite):
    """Whether it asked to be measured or was stopped before."""
    suite.makepyfile(
        test_marked=f"""
        import pytest

        @pytest.mark.requires_sm("90")
        @pytest.mark.perf_cases({DECODE!r}, {TINY!r})
        def test_marked(perf, case): perf(case)
        """
    )
    suite.runpytest(*QUICK, "--perf-backends=torch,fa3", "--benchmark-json=run.json", "-W", "ignore")
    left = json.loads((suite.path / "run.json").read_text())["flashinfer_perf"]["unmeasured"]
    reasons = {(one["case"], one["backend"], one["outcome"], one["reason"]) for one in left}
    case = f"{DECODE}/b2-s16-h4-kv2-d16-p4"
    assert (f"{case}-fa3", "fa3", "skipped", "fa3 needs an NVIDIA GPU, this run is on the CPU") in reasons
    assert (f"{case}-torch", "torch", "skipped", "this test needs an NVIDIA GPU, this run is on the CPU") in reasons
