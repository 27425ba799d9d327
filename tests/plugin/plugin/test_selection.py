"""Cases are selected by options, ids, markers and flags; what is not understood is one clear error."""

import re
import shlex

import pytest
from decode_cases import DECODE, TEST, TINY

from pytest_flashinfer_perf import routines
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.plugin import cases as suite_of_tests
from pytest_flashinfer_perf.plugin import collection
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.settings.settings import Settings

OF_THE_CORE = {routine.name for routine in routines.in_package(routines)}
SMOKE_SHAPES = len(list(decode.tiers["smoke"]()))
BACKENDS = len(decode.backends)
OF_A_TIER = f"import pytest\n@pytest.mark.perf_cases({DECODE!r})\ndef test_it(perf, case): perf(case)\n"


def test_strict_skips_fail(session):
    done = session("--perf-backends=fa3,fa2", "--perf-strict-skips=*-fa3", test_decode=TEST)
    assert done.outcomes == {"failed": 2, "skipped": 2}
    done.says("--perf-strict-skips=[*]-fa3 does not allow this skip: fa3 needs an NVIDIA GPU*")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--perf-backends=fa2,fa9", "--perf-backends: unknown name 'fa9', did you mean fa3? known are auto,"),
        ("--perf-device=cuda:9", "--perf-device: there is no device cuda:9, this machine has cpu"),
        ("--perf-device=gpu", "--perf-device: there is no device gpu"),
        ("--perf-instrument=cupti", "--perf-instrument=cupti: cupti needs an NVIDIA GPU, this run is on the CPU"),
        ("--perf-cuda-graph=on", "--perf-cuda-graph=on needs an NVIDIA GPU, this run is on the CPU"),
        ("--perf-max-memory=-1", "must be a number of GiB above 0, got '-1'"),
        ("--perf-max-memory=nan", "must be a number of GiB above 0, got 'nan'"),
        ("--perf-iters=0", "must be a whole number of at least 1, got '0'"),
        ("--benchmark-max-time=nan", "--benchmark-max-time: must be a finite number of seconds of at least 0, got nan"),
        ("--perf-suite=huge", "invalid choice: 'huge'"),
        (f"--perf-case=--routine {DECODE} {TINY} --num_qo_heads 5", "num_qo_heads: 5 is not a multiple of"),
    ],
)
def test_bad_input_is_one_clear_error(session, option, sentence):
    done = session(option, "-W", "ignore", quick=False, test_decode=TEST)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert sentence in done.err
    assert "Traceback" not in done.err + done.out


def test_a_bad_shape_in_a_test_file_names_the_parameter(session):
    done = session(test_decode=TEST.replace(f"{TINY!r},", f"{TINY!r} + ' --num_kv_heads 3',"))
    assert done.code == pytest.ExitCode.INTERRUPTED
    done.says("*num_qo_heads: 4 is not a multiple of num_kv_heads 3*")


def test_repro_reruns_exactly_this_case(session):
    rows = session("--perf-backends=torch", "--perf-seed=7", test_decode=TEST).rows
    assert len(rows) == 2
    for row in rows.values():
        done = session("--import-mode=importlib", *shlex.split(row["extra_info"]["repro"])[1:])
        [again] = done.rows.values()
        for name in ("case", "seed", "flops", "bytes", "refcheck_worst_abs"):
            assert again["extra_info"][name] == row["extra_info"][name]
        assert again["params"] == row["params"]


@pytest.mark.parametrize(
    ("selection", "count"),
    [
        (["-k", "decode and fa3 and llama"], 1),
        (["-k", f"{DECODE} and fa3 and attention"], SMOKE_SHAPES),
        (["-k", "fa2"], 2 * SMOKE_SHAPES),
        (["-m", "attention"], BACKENDS * SMOKE_SHAPES),
        (["-m", 'perf(backend="fa3", batch_size=4, s_kv=256, s_qo=1)'], 8),
        (["-m", 'perf(model="llama-3.1-8b-tp8", backend="torch")'], 1),
        (["-m", "perf(random_actual_seq_len=True) and not perf(backend='torch')"], 8),
        (["--perf-backends=fa2 trtllm-gen-native"], 2 * SMOKE_SHAPES),
    ],
)
def test_cases_are_selected_by_id_and_by_marker_whatever_the_test_is_called(session, selection, count):
    collected = session("--perf-suite=smoke", "--collect-only", "-q", *selection, test_tier=OF_A_TIER).out.splitlines()
    ids = [line.partition("[")[2].rstrip("]") for line in collected if "::" in line]
    assert len(ids) == len(set(ids)) == count
    assert all(re.fullmatch(r"[a-z0-9._-]+", name) for name in ids)


@pytest.mark.parametrize(
    ("asked", "device", "gpus", "tier"),
    [
        (None, "auto", 0, "smoke"),
        (None, "cpu:any", 1, "smoke"),
        (None, "auto", 1, "default"),
        (None, "cuda:9", 0, "default"),  # which is refused before a test runs
        ("full", "auto", 0, "full"),
    ],
)
def test_the_smallest_tier_runs_on_a_cpu_unless_another_is_asked_for(monkeypatch, asked, device, gpus, tier):
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert suite_of_tests.tier_of(Settings(suite=asked, device=device)) == tier


@pytest.mark.parametrize(("asked", "said"), [([], 1), (["--perf-suite=smoke"], 0)])
def test_the_tier_that_nobody_asked_for_is_said_and_is_in_the_row(session, asked, said):
    done = session(*asked, "--perf-backends=torch", "-k", "llama-3.1-8b-tp8", test_tier=OF_A_TIER)
    assert done.out.count("tier smoke, as this run is on the CPU: --perf-suite=default runs the usual shapes") == said
    assert {row["extra_info"]["tier"] for row in done.rows.values()} == {"smoke"}


def test_a_shape_that_a_test_names_is_of_no_tier(session):
    done = session("--perf-backends=torch", test_decode=TEST)
    assert [row["extra_info"]["tier"] for row in done.rows.values()] == [None, None]
    assert "tier smoke" not in done.out


# Every function that the READMEs of FlashInfer's and vLLM's benchmarks name, and the routines whose cases call it.
SELECTED = {
    DECODE: {DECODE},
    "cudnn_batch_decode_with_kv_cache": {DECODE},
    "trtllm_batch_decode_with_kv_cache": {DECODE, "BatchMLAPagedAttentionWrapper"},
    "BatchPrefillWithPagedKVCacheWrapper": {"BatchPrefillWithPagedKVCacheWrapper"},
    "cudnn_batch_prefill_with_kv_cache": {
        "BatchPrefillWithPagedKVCacheWrapper",
        "BatchPrefillWithRaggedKVCacheWrapper",
    },
    "trtllm_batch_context_with_kv_cache": {"BatchPrefillWithPagedKVCacheWrapper"},
    "BatchPrefillWithRaggedKVCacheWrapper": {"BatchPrefillWithRaggedKVCacheWrapper"},
    "BatchMLAPagedAttentionWrapper": {"BatchMLAPagedAttentionWrapper"},
    "trtllm_batch_decode_with_kv_cache_mla": {"BatchMLAPagedAttentionWrapper"},
    "gemm_fp8_nt_groupwise": {"gemm_fp8_nt_groupwise", "group_gemm_fp8_nt_groupwise"},
    "group_gemm_fp8_nt_groupwise": {"group_gemm_fp8_nt_groupwise"},
    "bmm_fp8": {"bmm_fp8"},
    "mm_fp4": {"mm_fp4"},
    "trtllm_fp4_block_scale_moe": {"trtllm_fp4_block_scale_moe"},
    "trtllm_fp8_block_scale_moe": {"trtllm_fp8_block_scale_moe"},
    "trtllm_fp8_per_tensor_scale_moe": {"trtllm_fp8_per_tensor_scale_moe"},
    "cutlass_fused_moe": {"cutlass_fused_moe"},
}


@pytest.fixture(scope="module")
def of_the_suite():
    """The items of the suite's smoke tier, as pytest collects them."""

    class Kept:
        def pytest_collection_finish(self, session):
            self.items = [item for item in session.items if item.callspec.params["case"].routine.name in OF_THE_CORE]

    kept = Kept()
    arguments = [
        *map(str, suite_of_tests.paths()),
        "--perf-suite=smoke",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(suite_of_tests.root())
        assert pytest.main(arguments, plugins=[kept]) == pytest.ExitCode.OK
    return kept.items


def words(item):
    """What pytest compares the words of -k with."""
    names = {node.name for node in item.listchain()} | set(item.listextrakeywords())
    return {name.lower() for name in names | {mark.name for mark in item.iter_markers()}}


@pytest.mark.parametrize(("name", "selected"), SELECTED.items())
def test_every_function_that_upstream_names_selects_its_cases(of_the_suite, name, selected):
    cases = [item.callspec.params["case"] for item in of_the_suite if any(name.lower() in w for w in words(item))]
    assert {case.routine.name for case in cases} == selected
    assert all(name in f"{case.routine.name} {case.backend.api}" for case in cases)
    of_the_routine = [item for item in of_the_suite if item.callspec.params["case"].routine.name == name]
    assert len(of_the_routine) == sum(case.routine.name == name for case in cases)


TOGETHER = [
    (["BatchMLAPagedAttentionWrapper", "fa3"], {"fa3"}),
    ([DECODE, "trtllm-gen-native"], {"trtllm-native"}),
    (["gemm", "bf16", "bfloat16", "tinygemm"], {"tinygemm"}),
    (["moe", "mono_moe"], {"mono_moe"}),
]


@pytest.mark.parametrize(("asked", "backends"), TOGETHER)
def test_family_backend_kernels_and_types_are_words_of_k(of_the_suite, asked, backends):
    found = [i for i in of_the_suite if all(any(word.lower() in known for known in words(i)) for word in asked)]
    assert {item.callspec.params["case"].backend_name for item in found} == backends


def test_cases_carry_what_their_backend_is_declared_to_need(of_the_suite, cpu, hopper, blackwell):
    for item in of_the_suite:
        case = item.callspec.params["case"]
        marked = [item.get_closest_marker(f"requires_{what}") for what in ("sm", "backend", "flashinfer")]
        if not case.backend.api:
            assert marked == [None, None, None]
            continue
        needed = [capability.HARDWARE[case.backend.runs_as], (case.backend.runs_as,), (case.backend.api,)]
        assert [mark.args for mark in marked] == needed
        for device in (cpu, hopper, blackwell):
            unmet = capability.missing(case.backend.requires, device)
            assert collection.unmet(item, device) == unmet, case.id


def test_the_library_s_own_decorator_decides_where_it_has_one(of_the_suite, cpu):
    pytest.importorskip("flashinfer")
    here = Device(cpu.torch, "RTX PRO 6000", (12, 0), "GPU-0", 96 << 20, 188)
    [item, *_] = [item for item in of_the_suite if item.name.startswith("test_mm_fp4") and "-cutlass" in item.name]
    assert "12.0" not in item.get_closest_marker("requires_sm").args
    assert collection.unmet(item, here) is None


CANNOT_RUN = f"""
import pytest

@pytest.fixture
def inputs(): raise AssertionError("drawn")

@pytest.mark.perf_cases({DECODE!r}, {TINY!r})
def test_it(inputs, perf, case): perf(case)
"""


def test_a_case_that_cannot_run_is_skipped_before_it_is_set_up(session):
    done = session("--perf-backends=fa3,torch", test_own=CANNOT_RUN)
    assert done.outcomes == {"skipped": 1, "errors": 1}
    left = [case for case in done.document["flashinfer_perf"]["unmeasured"] if case.get("backend") == "fa3"]
    assert [(case["case"], case["device"]) for case in left] == [(f"{DECODE}/b2-s16-h4-kv2-d16-p4-fa3", "cpu")]


QUARANTINE = """
[quarantine]
"test_own.py::test_one[a]" = { reason = "it hangs", link = "x", date = 2026-11-28 }
"*::test_fix*" = { reason = "it crashes", link = "y" }
"""
QUARANTINED = """
import pytest

@pytest.fixture
def inputs(): raise AssertionError("made")

@pytest.mark.parametrize("which", "ab")
def test_one(perf, which): assert perf.time(len, which) and which == "b"
def test_fixture(perf, inputs): pass
"""


def test_a_test_of_one_s_own_is_quarantined_by_its_id(session, pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": QUARANTINE})
    done = session("--perf-strict-skips=*", test_own=QUARANTINED)
    assert done.outcomes == {"passed": 1, "skipped": 2}, "known to be broken is no skip that strictness is about"
    said = {one["test"]: one["reason"] for one in done.document["flashinfer_perf"]["unmeasured"]}
    assert said == {
        "test_own.py::test_one[a]": "quarantined since 2026-11-28: it hangs (x)",
        "test_own.py::test_fixture": "quarantined: it crashes (y)",
    }


OTHERS = f"""
import dataclasses, pytest
from pytest_flashinfer_perf.routines.attention.decode import decode

@pytest.mark.perf_cases({DECODE!r})
def test_decode(perf, case): perf(case)

@pytest.mark.perf_cases(dataclasses.replace(decode, name="Other"))
def test_other(perf, case): perf(case)
"""
OWN = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))\n"
ASKED = f"--perf-case=--routine {DECODE} {TINY} --s_kv 32 --backends torch"


@pytest.mark.parametrize(
    ("named", "outcomes"), [(["test_others.py"], {"passed": 1, "deselected": 1}), ([], {"passed": 1})]
)
def test_a_case_is_measured_by_the_test_of_its_routine_and_needs_none(session, named, outcomes):
    done = session(*named, "--import-mode=importlib", ASKED, test_others=OTHERS, test_own=OWN)
    assert {name: n for name, n in done.outcomes.items() if named or name != "deselected"} == outcomes
    assert [row["extra_info"]["case"] for row in done.rows.values()] == [f"{DECODE}/b2-s32-h4-kv2-d16-p4-torch"]


@pytest.mark.parametrize("in_ini", [False, True])
def test_a_case_that_no_named_test_has_is_an_error_and_no_other_is_measured(session, pytester, in_ini):
    if in_ini:
        pytester.makeini(f"[pytest]\naddopts = {shlex.quote(ASKED)}\n")
    done = session("test_own.py", *[ASKED] * (not in_ini), test_own=OWN)
    assert (done.code, done.outcomes) == (pytest.ExitCode.USAGE_ERROR, {})
    done.complains(f"ERROR: --perf-case: no test that is named has the case {DECODE}/b2-s32-*: mark one by perf_cases*")


MARKED = """
import pytest

@pytest.mark.requires_sm("90", "100+")
def test_sm(): raise AssertionError

@pytest.mark.requires_backend("fa3")
def test_backend(): raise AssertionError

@pytest.mark.requires_flashinfer("no_such_kernel")
def test_flashinfer(): raise AssertionError
"""


def test_markers_for_people_s_own_tests(session):
    pytest.importorskip("flashinfer")
    done = session("-rs", test_own=MARKED)
    assert done.outcomes == {"skipped": 3}
    for reason in ("this test needs an NVIDIA GPU", "fa3 needs an NVIDIA GPU", "no_such_kernel"):
        done.says(f"*{reason}*")
    wrong = session(test_own=MARKED.replace("fa3", "fa9"))
    assert wrong.code != 0
    assert "unknown name 'fa9', did you mean fa3?" in wrong.out + wrong.err


def test_tests_of_the_suite_are_named_alike_in_a_checkout_and_where_they_are_installed(session):
    for named in ("tests/gemm", "tests/gemm/test_gemm.py"):
        done = session(named, "-k", "mm_bf16 and torch", "--perf-suite=smoke", "--collect-only", "-q")
        assert done.code == 0
        assert "test_mm_bf16[m16-n256-k512-torch]" in done.out
    assert session("tests/none").code == pytest.ExitCode.USAGE_ERROR
