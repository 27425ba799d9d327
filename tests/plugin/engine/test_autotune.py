"""Autotuning with the library's own tuner, whose stopwatch alone is replaced: there is no GPU to time."""

import json
from pathlib import Path

import pytest
import torch

from pytest_flashinfer_perf.engine import autotune
from pytest_flashinfer_perf.engine.autotune import CacheError, Choice

tuner = pytest.importorskip("flashinfer.autotuner", exc_type=ImportError)
MICROSECONDS = {0: 5.0, 1: 3.0, 2: 4.0}


class CublasFp8GemmRunner(tuner.TunableRunner):
    def get_valid_tactics(self, _inputs, _profile):
        return list(MICROSECONDS)

    def forward(self, _inputs, tactic=-1, **_more):
        return tactic


@pytest.fixture
def call(monkeypatch):
    """A product that asks the tuner as FlashInfer's do, for an operation of this test's own."""

    def stopwatch(_self, _runner, _inputs, tactic, *_more, **_options):
        return MICROSECONDS[tactic]

    monkeypatch.setattr(tuner.AutoTuner, "_profile_single_kernel", stopwatch)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made, inputs = tuner.AutoTuner.get(), [torch.zeros(4, 8)]
    yield lambda: made.choose_one("a_test", [CublasFp8GemmRunner()], tuner.TuningConfig(), inputs)
    made.clear_cache()


def test_a_tuned_call_takes_the_fastest_and_leaves_nothing_behind(call):
    assert autotune.choose_kernel(call, tune=True, cache=None).tactic == 1
    assert autotune.choose_kernel(call, tune=False, cache=None) == Choice("CublasFp8GemmRunner", -1)
    assert "choose_one" not in vars(tuner.AutoTuner.get())
    assert autotune.choose_kernel(lambda: None, tune=False, cache=None) is None, "it asks nobody"


def test_a_cache_is_written_by_tuning_and_read_without(call, tmp_path):
    kept = str(tmp_path / "tactics.json")
    assert autotune.choose_kernel(call, tune=True, cache=kept).tactic == 1
    assert autotune.choose_kernel(call, tune=False, cache=kept).tactic == 1
    assert autotune.choose_kernel(call, tune=False, cache=None).tactic == -1


def test_a_runner_is_known_by_its_backend():
    backends = {
        "CublasFp8GemmRunner": "cublas",
        "CublasltBf16GemmRunner": "cublaslt",
        "CudnnBf16GemmRunner": "cudnn",
        "TinyGemmBf16GemmRunner": "tinygemm",
        "CutedslLowLatencyBlockscaledGemmRunner": "cutedsl_low_latency",
        "CuteDSLFp4GemmRunner": "cute-dsl",
        "SomebodyElsesRunner": "SomebodyElsesRunner",
    }
    known = ["cublas", "cublaslt", "cudnn", "tinygemm", "cute-dsl", "cutedsl_low_latency", "auto", "torch"]
    assert {runner: Choice(runner, 0).backend(known) for runner in backends} == backends


def test_what_is_no_cache_is_an_error(tmp_path):
    broken, absent = tmp_path / "broken.json", tmp_path / "absent.json"
    for text in ("{", "[]"):
        broken.write_text(text)
        for tune in (False, True):
            with pytest.raises(CacheError, match="is not an autotuner cache file"):
                autotune.verify(str(broken), tune=tune)
    with pytest.raises(CacheError, match="No such file or directory; a case with --autotune writes it"):
        autotune.verify(str(absent), tune=False)
    autotune.verify(str(absent), tune=True)
    with pytest.raises(CacheError):
        autotune.verify(str(tmp_path / "nowhere" / "absent.json"), tune=True)
    with pytest.raises(CacheError, match=r"/proc/tactics\.json: "):
        autotune.verify("/proc/tactics.json", tune=True)


ON_CPU = """
    import pytest
    import torch
    from flashinfer.autotuner import AutoTuner, TunableRunner, TuningConfig
    from pytest_flashinfer_perf.spec.routine import Built
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8

    class CublasFp8GemmRunner(TunableRunner):
        def get_valid_tactics(self, inputs, profile):
            return [0, 1]

        def forward(self, inputs, tactic=-1, **more):
            return None

    AutoTuner._profile_single_kernel = lambda self, runner, inputs, tactic, *a, **k: 2.0 - tactic
    torch.cuda.is_current_stream_capturing = lambda: False

    @bmm_fp8.backend("auto", tunes=True)
    def _auto(p, x, how):
        plain, always = bmm_fp8.backends["torch"].build(p, x, how).launch, [torch.zeros(4, 8)]

        def launch(x):
            AutoTuner.get().choose_one("a_test", [CublasFp8GemmRunner()], TuningConfig(), always)
            return plain(x)

        return Built(launch, "auto")

    @pytest.mark.perf_cases(bmm_fp8, *(f"--n 16 --k 32 --m {more}" for more in ("4", "4 --autotune", "8")))
    def test_bmm(perf, case):
        perf(case)
"""


@pytest.fixture
def run(session, pytester, monkeypatch):
    for home, name in ((tuner.AutoTuner, "_profile_single_kernel"), (torch.cuda, "is_current_stream_capturing")):
        monkeypatch.setattr(home, name, getattr(home, name))  # the file's own ends with the test
    pytester.makepyfile(ON_CPU)

    def run(*options):
        done = session(*options)
        return done, {row["extra_info"]["case"]: row["extra_info"] for row in done.rows.values()}

    yield run
    tuner.AutoTuner.get().clear_cache()


def test_the_row_says_that_and_what_was_tuned(run):
    done, rows = run("--perf-backends=auto,torch")
    assert done.outcomes == {"passed": 5, "skipped": 1}
    done.says("*1  torch has nothing to autotune: leave out --autotune")
    untuned, tuned = (rows[f"bmm_fp8/m4-n16-k32{tag}-auto"] for tag in ("", "-autotune"))
    assert (untuned["autotuned"], untuned["tactic"]) == (False, "CublasFp8GemmRunner default")
    assert (tuned["autotuned"], tuned["tactic"]) == (True, "CublasFp8GemmRunner 1")
    assert tuned["resolved_backend"] == "cublas"
    assert rows["bmm_fp8/m8-n16-k32-auto"]["tactic"] == "CublasFp8GemmRunner default"
    assert rows["bmm_fp8/m4-n16-k32-torch"]["tactic"] is None


def test_a_cache_is_an_error_until_a_tuned_case_wrote_it_and_in_another_environment(run):
    done, rows = run("--perf-backends=auto", "--perf-autotune-cache=kept.json")
    assert done.outcomes == {"failed": 1, "passed": 2}
    done.says("*kept.json: No such file or directory; a case with --autotune writes it")
    row = rows["bmm_fp8/m8-n16-k32-auto"]
    assert (row["autotuned"], row["tactic"], row["autotune_cache"]) == (False, "CublasFp8GemmRunner 1", "kept.json")
    assert "--autotune_cache kept.json" in row["repro"]
    kept = Path("kept.json")
    document = json.loads(kept.read_text())
    document["_metadata"]["gpu"] = "Another GPU"
    kept.write_text(json.dumps(document))
    done, _ = run("--perf-backends=auto", "--perf-autotune-cache=kept.json", "-k", "m8")
    assert done.outcomes == {"failed": 1, "deselected": 2}
    done.says("*kept.json: FlashInfer does not use it here, as it is of another environment: *gpu Another GPU*")
