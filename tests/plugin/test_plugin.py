"""The plugin as its users meet it: pytest runs, options, exit codes, rows."""

import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
import torch
from made import typed

from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.running import record

SMOKE_SHAPES = len(list(decode.tiers["smoke"]()))

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
TINY = "--page_size 4 --batch_size 2 --s_kv 16 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 16"
UNUSED = ("-W", "error:Benchmark fixture was not used")
QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "-p", "no:cacheprovider")


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(
        test_decode=f"""
        import pytest

        @pytest.mark.perf_cases({DECODE!r}, {TINY!r}, {TINY!r} + " --q_dtype float16 --kv_dtype float16")
        def test_decode(perf, case):
            perf(case)
        """
    )
    return pytester


def rows(pytester, name="run.json"):
    return json.loads((pytester.path / name).read_text())["benchmarks"]


def test_a_case_is_measured_checked_and_recorded(suite):
    result = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-json=run.json", "--perf-case-tag=mine")
    result.assert_outcomes(passed=2)
    row = rows(suite)[0]
    assert row["fullname"] == "test_decode.py::test_decode[b2-s16-h4-kv2-d16-p4-torch]"
    assert (row["stats"]["rounds"], len(row["stats"]["data"])) == (3, 3)
    assert row["options"]["timer"] == "wall"
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


def test_the_row_promises_these_fields(suite):
    suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-json=run.json")
    promised = """routine backend resolved_backend family tflops tb_per_sec flops bytes sol_pct bound instrument cold_l2
    rotations kernels launches busy_s span_s cycles sm_ghz throttle power_w cuda_graph device seed status refcheck
    peak_memory_bytes case case_tag repro repro_upstream gpu_uuid"""
    assert set(promised.split()) <= set(rows(suite)[0]["extra_info"])
    whole = json.loads((suite.path / "run.json").read_text())
    assert whole["flashinfer_perf"] == {"schema": 2, "roofs": {"cpu": {}}, "unmeasured": []}
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
from pytest_flashinfer_perf.running import record

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


def test_strict_skips_fail(suite):
    result = suite.runpytest(*QUICK, "--perf-backends=fa3,fa2", "--perf-strict-skips=*-fa3")
    result.assert_outcomes(failed=2, skipped=2)
    result.stdout.fnmatch_lines(["--perf-strict-skips=[*]-fa3 does not allow this skip: fa3 needs an NVIDIA GPU*"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--perf-backends=fa2,fa9"], "--perf-backends: unknown name 'fa9', did you mean fa3? known are auto,"),
        (["--perf-device=cuda:9"], "--perf-device=cuda:9: there is no such device, this machine has cpu"),
        (["--perf-device=gpu"], "--perf-device=gpu: there is no such device"),
        (["--perf-instrument=cupti"], "--perf-instrument=cupti: cupti needs an NVIDIA GPU, this run is on the CPU"),
        (["--perf-cuda-graph=on"], "--perf-cuda-graph=on needs an NVIDIA GPU, this run is on the CPU"),
        (["--perf-max-memory=-1"], "must be a number of GiB above 0, got '-1'"),
        (["--perf-max-memory=nan"], "must be a number of GiB above 0, got 'nan'"),
        (["--perf-iters=0"], "must be a whole number of at least 1, got '0'"),
        (["--perf-suite=huge"], "invalid choice: 'huge'"),
        ([f"--perf-case=--routine {DECODE} {TINY} --num_qo_heads 5"], "num_qo_heads: 5 is not a multiple of"),
        ([f"--perf-case=--routine {DECODE} {TINY} --page_size 0"], "page_size: must be at least 1, got 0"),
        ([f"--perf-case=--routine {DECODE} {TINY} --s_qo 17 --causal"], "s_qo: 17 is more than s_kv 16"),
        ([f"--perf-case=--routine {DECODE} {TINY} --backends fa9"], "backends: unknown name 'fa9'"),
        ([f"--perf-case=--routine {DECODE} {TINY} --foo 1"], "unknown flag --foo"),
        (["--perf-case=--routine 'x"], "No closing quotation"),
    ],
)
def test_bad_input_is_one_clear_error(suite, arguments, sentence):
    result = suite.runpytest(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_a_bad_shape_in_a_test_file_names_the_parameter(pytester):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.perf_cases({DECODE!r}, {TINY!r} + " --num_kv_heads 3")
        def test_decode(perf, case): perf(case)
        """
    )
    result = pytester.runpytest(*QUICK)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*num_qo_heads: 4 is not a multiple of num_kv_heads 3*"])


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


def test_repro_reruns_exactly_this_case(suite):
    suite.runpytest(*QUICK, "--perf-backends=torch", "--perf-seed=7", "--benchmark-json=run.json")
    for row in rows(suite):
        command = shlex.split(row["extra_info"]["repro"])
        again = suite.runpytest(*QUICK, "--import-mode=importlib", *command[1:], "--benchmark-json=again.json")
        again.assert_outcomes(passed=1)
        again = rows(suite, "again.json")[0]
        for name in ("case", "seed", "flops", "bytes", "refcheck_worst_abs"):
            assert again["extra_info"][name] == row["extra_info"][name]
        assert again["params"] == row["params"]


def collected(result):
    return [line.partition("[")[2].rstrip("]") for line in result.outlines if "::" in line]


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (["-k", "decode and fa3 and llama"], 1),
        (["-k", "fa2"], 2 * SMOKE_SHAPES),
        (["-m", "attention"], len(decode.backends) * SMOKE_SHAPES),
        (["-m", 'perf(backend="fa2")'], SMOKE_SHAPES),
        (["-m", 'perf(backend="fa3", batch_size=4, s_kv=256, s_qo=1)'], 8),
        (["-m", 'perf(model="llama-3.1-8b-tp8", backend="torch")'], 1),
        (["-m", "perf(random_actual_seq_len=True) and not perf(backend='torch')"], 8),
        (["--perf-backends=fa2 trtllm-gen-native"], 2 * SMOKE_SHAPES),
    ],
)
def test_cases_are_selected_by_id_and_by_marker(pytester, selection, count):
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.perf_cases({DECODE!r})
        def test_decode(perf, case): perf(case)
        """
    )
    ids = collected(pytester.runpytest("--perf-suite=smoke", "--collect-only", "-q", *selection))
    assert len(ids) == len(set(ids)) == count
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in ids)


def test_another_routines_case_deselects_a_test(pytester):
    pytester.makepyfile(
        f"""
        import dataclasses, pytest
        from pytest_flashinfer_perf.routines.attention.decode import decode

        @pytest.mark.perf_cases({DECODE!r})
        def test_decode(perf, case): perf(case)

        @pytest.mark.perf_cases(dataclasses.replace(decode, name="Other"))
        def test_other(perf, case): perf(case)
        """
    )
    wanted = f"--routine {DECODE} {TINY} --s_kv 32 --backends torch"
    result = pytester.runpytest(*QUICK, "test_another_routines_case_deselects_a_test.py", "--perf-case", wanted, "-v")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.re_match_lines([r".*test_decode\[b2-s32-h4-kv2-d16-p4-torch\] [0-9.]+ .?s .*"])


def test_a_case_needs_no_test_file(pytester):
    wanted = f"--routine {DECODE} {TINY} --backends torch"
    result = pytester.runpytest(*QUICK, "--import-mode=importlib", f"--perf-case={wanted}", "--benchmark-json=run.json")
    result.assert_outcomes(passed=1)
    assert rows(pytester)[0]["extra_info"]["case"] == f"{DECODE}/b2-s16-h4-kv2-d16-p4-torch"


@pytest.mark.parametrize(
    ("option", "outcome", "recorded"),
    [
        ("--benchmark-only", {"passed": 1, "skipped": 1}, 1),
        ("--benchmark-skip", {"passed": 1, "skipped": 1}, 0),
        ("--benchmark-disable", {"passed": 2}, 0),
        ("--dist=load", {"passed": 2}, 1),  # without workers: pytest-benchmark would be off
    ],
)
def test_options_of_pytest_benchmark_and_xdist_keep_working(pytester, option, outcome, recorded):
    pytester.makepyfile(
        """
        import torch
        def test_own(perf): perf.time(torch.neg, torch.ones(8))
        def test_plain(): pass
        """
    )
    result = pytester.runpytest(*QUICK, option, "--benchmark-json=run.json", "-W", "ignore")
    result.assert_outcomes(**outcome)
    written = pytester.path / "run.json"
    assert (len(rows(pytester)) if written.exists() and written.stat().st_size else 0) == recorded


def test_a_row_that_pytest_benchmark_would_lose_fails_its_test(suite, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    done = suite.runpytest(*QUICK, "--perf-backends=torch", "-W", "ignore")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*pytest-benchmark is off and would lose this row: unset PYTEST_XDIST_WORKER, *"])


def test_without_pytest_benchmark_there_are_no_rows_and_it_is_said(suite):
    done = suite.runpytest(*QUICK, "--perf-backends=torch", "-p", "no:benchmark")
    assert done.ret != 0
    done.stderr.fnmatch_lines(["ERROR: rows are pytest-benchmark's: leave out -p no:benchmark"])


def test_saving_comparing_and_histograms_keep_working(suite):
    first = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-autosave", "--benchmark-storage=file://store")
    first.assert_outcomes(passed=2)
    again = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-compare", "--benchmark-storage=file://store")
    again.assert_outcomes(passed=2)
    again.stderr.fnmatch_lines(["*Comparing against benchmarks from: *"])
    assert "machine_info is different" not in again.stdout.str() + again.stderr.str()
    saved = str(next((suite.path / "store").rglob("*.json")))
    compared = suite.run(sys.executable, "-m", "pytest_benchmark", "compare", saved)
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*test_decode[[]b2-s16-h4-kv2-d16-p4-torch]*"])


def test_a_plain_benchmark_beside_ours_is_left_alone(pytester):
    pytester.makepyfile(
        """
        def test_plain(benchmark): assert benchmark(lambda: 7) == 7
        """
    )
    result = pytester.runpytest("--benchmark-json=run.json")
    result.assert_outcomes(passed=1)
    whole = json.loads((pytester.path / "run.json").read_text())
    assert "flashinfer_perf" not in whole
    assert "torch" not in whole["machine_info"]
    assert whole["benchmarks"][0]["options"]["timer"] == "perf_counter"
    assert "= flashinfer-perf =" not in result.stdout.str()


def test_a_fixture_measures_once_per_test(pytester):
    pytester.makepyfile(
        """
        import torch
        def test_twice(perf):
            perf.time(torch.neg, torch.ones(8))
            perf.time(torch.neg, torch.ones(8))
        """
    )
    result = pytester.runpytest(*QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf records one row per test: parametrize the test to measure more*"])


@pytest.mark.parametrize("option", ["-v", "--benchmark-disable", "--perf-refcheck=only", "--perf-fuzz"])
def test_a_test_that_measures_nothing_is_no_test_that_has_passed(pytester, option):
    """Where it says why not, that counts."""
    pytester.makepyfile(
        """
        import pytest
        def test_forgets(perf): pass
        def test_skips(perf): pytest.skip("not here")
        def test_wants(perf): pytest.importorskip("no_such_module")
        @pytest.mark.xfail(strict=True)
        def test_known(perf): pass
        """
    )
    result = pytester.runpytest(*QUICK, option, "-W", "error")
    result.assert_outcomes(failed=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(["nothing was measured: call perf(case) or perf.time(...), pytest.skip(reason), or *"])


def test_somebody_elses_perf_is_left_alone(pytester):
    pytester.makepyfile(
        """
        import pytest
        @pytest.fixture
        def perf(): return 7
        def test_own(perf): assert perf == 7
        """
    )
    pytester.runpytest(*QUICK).assert_outcomes(passed=1)


def test_perf_is_asked_for_as_an_argument(pytester):
    pytester.makepyfile(
        """
        import torch
        def test_dynamic(request): request.getfixturevalue("perf")
        def test_argument(perf): perf.time(torch.neg, torch.ones(8))
        """
    )
    alone = pytester.runpytest(*QUICK, "-W", "ignore", "-k", "dynamic")
    alone.assert_outcomes(failed=1, deselected=1)
    result = pytester.runpytest(*QUICK, "-W", "ignore")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*perf must be an argument of the test itself*"])


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


def test_benchmark_is_not_called_beside_perf(pytester):
    pytester.makepyfile("def test_both(perf, benchmark): benchmark(lambda: 1)")
    result = pytester.runpytest(*QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*records through perf(...) or perf.time(...), not benchmark(...)*"])


@pytest.mark.parametrize("value", [float("nan"), torch.float16, {(1, 2): 3}])
def test_a_row_is_json_or_an_error_in_its_test(value):
    with pytest.raises(ValueError, match="JSON values only"):
        record.checked(replace(typed(), facts={"x": value}))


def test_markers_for_people_s_own_tests(pytester):
    pytest.importorskip("flashinfer")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.requires_sm("90", "100+")
        def test_sm(): raise AssertionError

        @pytest.mark.requires_backend("fa3")
        def test_backend(): raise AssertionError

        @pytest.mark.requires_flashinfer("no_such_kernel")
        def test_flashinfer(): raise AssertionError
        """
    )
    result = pytester.runpytest("-rs", "--perf-device=cpu")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines_random(
        ["*this test needs an NVIDIA GPU*", "*fa3 needs an NVIDIA GPU*", "*flashinfer*no_such_kernel*"]
    )


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


def test_an_unknown_backend_in_a_marker_is_an_error(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.requires_backend("fa9")
        def test_backend(): pass
        """
    )
    result = pytester.runpytest("--perf-device=cpu")
    assert result.ret != 0
    assert "unknown name 'fa9', did you mean fa3?" in result.stdout.str() + result.stderr.str()


def test_a_causal_case_on_a_cpu_does_not_pay_for_torchs_compiler(pytester):
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure():
            assert "torch" in sys.modules
            assert not {"torch._dynamo", "flashinfer"} & set(sys.modules)
    """)
    pytester.makepyfile("""
        import pytest

        SHAPE = "--page_size 4 --batch_size 1 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 --causal --s_qo 3"

        @pytest.mark.perf_cases("BatchPrefillWithPagedKVCacheWrapper", f"{SHAPE} --s_kv 5", f"{SHAPE} --s_kv 3")
        def test_it(perf, case):
            perf(case)
    """)
    options = ("--perf-device=cpu", "--perf-iters=1", "--perf-backends=torch", "-p", "no:hypothesispytest")
    done = pytester.runpytest_subprocess(*options)
    done.assert_outcomes(passed=2)
    assert "Error" not in done.stderr.str()


def test_an_unrelated_project_does_not_pay_for_the_plugin(pytester):
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            assert not {"torch", "flashinfer", "hypothesis.strategies"} & set(sys.modules)
        """
    )
    pytester.makepyfile("def test_one(): pass")
    for arguments in (["--collect-only"], []):
        result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", *arguments)
        assert result.ret == 0
        assert "Error" not in result.stderr.str()
