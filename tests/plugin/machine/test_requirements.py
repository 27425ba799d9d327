"""What FlashInfer requires, by its metadata, in environments that have it and that have not; and whose kernels ran."""

import sys

import distributions
import pytest
from distributions import DSL, OLD, installed
from made import row, run
from verdicts import rules, verdict

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.machine import implementations, requirements

# What FlashInfer's modules warn of while they are imported is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def forget():
    requirements.versions.cache_clear()
    requirements.unmet.cache_clear()


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A folder in which all that is installed lies."""
    forget()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", [str(tmp_path)])
        yield tmp_path
    forget()


@pytest.fixture
def sides(tmp_path):
    return distributions.sides(tmp_path)


@pytest.fixture
def here(monkeypatch):
    """Puts a folder before what is installed."""

    def prepend(folder):
        monkeypatch.syspath_prepend(str(folder))
        forget()

    yield prepend
    forget()


def test_what_is_missing_or_too_old_is_named_with_what_pip_takes(alone):
    not_here = ('x; python_version < "3"', 'never-asked; extra == "sm107"')
    installed(alone, "flashinfer-python", "0.7.2", "Old.One>=2", "gone", "fine<2,>=1", "torch", *not_here)
    installed(alone, "old-one", "1.9")
    installed(alone, "fine", "1.5rc1", "in-turn[more]==4", "only-linux")
    installed(alone, "in-turn", "4", 'much; extra == "more"', 'never-asked; extra == "else"')
    installed(alone, "torch", "2.11.0+cu130", "not-looked-into==1")
    assert requirements.versions() == {"fine": "1.5rc1", "gone": None, "old-one": "1.9", "torch": "2.11.0+cu130"}
    assert [tuple(one) for one in requirements.unmet()] == [
        ("gone", "gone", "is not installed"),
        ("much", "much", "is not installed"),
        ("old-one", "old-one>=2", "is 1.9, >=2 is required"),
        ("only-linux", "only-linux", "is not installed"),
    ]


@pytest.mark.parametrize(("here", "lacking"), [("libs-cu13", []), ("libs", ["libs-cu12"]), (None, ["libs-cu12"])])
def test_another_cudas_build_of_a_library_will_do(alone, here, lacking):
    installed(alone, "flashinfer-python", "0.7.2", "libs-cu12==4.8")
    if here:
        installed(alone, here, "4.8")
    assert [one.name for one in requirements.unmet()] == lacking


def test_without_flashinfer_nothing_is_required(alone):
    installed(alone, "torch", "2.11")
    assert (requirements.versions(), requirements.unmet()) == ({}, ())


def test_the_metadata_of_the_installed_flashinfer_is_understood():
    forget()
    assert {DSL, "cuda-tile", "nvidia-cudnn-frontend", "torch"} <= requirements.versions().keys()


@pytest.mark.parametrize("incomplete", [False, True])
def test_a_session_says_it_at_its_head_and_in_each_row(session, sides, here, monkeypatch, incomplete):
    monkeypatch.setenv("FLASHINFER_USE_CUDA_NORM", "1")
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "/tmp")
    monkeypatch.setenv("FLASHINFER_PERF_HOLDS", "cpu")
    here(sides[incomplete])
    own = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))"
    done = session("-v", test_own=own)
    said = f"is INCOMPLETE: {OLD}" if incomplete else "with all that it requires"
    done.says(f"flashinfer 9.0*{said}")
    written = done["test_own"]["extra_info"]
    assert written["requirements"] == {DSL: "4.5.0" if incomplete else "4.8.1"}
    assert written["unmet"] == ({DSL: "is 4.5.0, >=4.6.2a0 is required"} if incomplete else {})
    assert written["switches"] == {"FLASHINFER_USE_CUDA_NORM": "1"}
    assert written["implementation"] is None


KERNELS = {
    "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_tensorptrbf16_0": "CuTe DSL",
    "_ZN10flashinfer4norm13RMSNormKernelILj8E13__nv_bfloat16EEvPT0_S3_S3_jfff": "CUDA",
    "void flashinfer::norm::RMSNormKernel<8u>": "CUDA",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7": "cuDNN",
    "_ZN5cudnn6fusion13qkv_tma_setupEjjjjjjPvS1_": "cuDNN",
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "cuBLAS",
    "_ZN8cublasLt19splitKreduce_kernelILi32EEEv": "cuBLAS",
    "_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi": "torch",
    "fmha_v2_flash_attention_bf16_64_128_S_q_kv_128_sm90_kernel_nl": "unknown",
}


def test_a_kernels_name_says_whose_it_is():
    assert {kernel: implementations.of_kernels([kernel]) for kernel in KERNELS} == {k: (v,) for k, v in KERNELS.items()}
    assert implementations.of_kernels(["MEMSET", *KERNELS, *KERNELS]) == tuple(dict.fromkeys(KERNELS.values()))


DSL_KERNEL, CUDA_KERNEL, CUBLAS_KERNEL = (
    next(k for k in KERNELS if KERNELS[k] == who) for who in ("CuTe DSL", "CUDA", "cuBLAS")
)
COMPLETE = {"unmet": {}, "kernels": [DSL_KERNEL]}
INCOMPLETE = {"unmet": {f"{DSL}-libs-base": "is not installed"}, "kernels": [CUDA_KERNEL]}


def test_a_complete_and_an_incomplete_flashinfer_are_not_compared_unless_that_is_admitted():
    before, after = row(us=100.0, **COMPLETE), row(us=150.0, **INCOMPLETE)
    assert verdict(before, after) == ("INVALID", "requirements", 2)
    assert verdict(after, before) == ("INVALID", "requirements", 2)
    assert verdict(before, after, rules(allow="requirements"))[::2] == ("SLOWER", 1)
    assert verdict(row(**INCOMPLETE), row(**INCOMPLETE))[::2] == ("SAME", 0)
    assert verdict(row(), row(**INCOMPLETE))[::2] == ("SAME", 0), "a file of an older version does not say"
    [judged] = judge([run(before)], [run(after)], rules()).cases
    assert f"requirements: complete in the baseline, without {DSL}-libs-base here (" in judged.sentence


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (COMPLETE, INCOMPLETE, f"now the CUDA implementation: {DSL}-libs-base is not installed"),
        (INCOMPLETE, COMPLETE, f"now the CuTe DSL implementation: in the baseline {DSL}-libs-base is not installed"),
        (
            {"kernels": [DSL_KERNEL]},
            {"kernels": [CUDA_KERNEL], "switches": {"FLASHINFER_USE_CUDA_NORM": "1"}},
            "now the CUDA implementation: FLASHINFER_USE_CUDA_NORM=1 is set",
        ),
        (
            {"kernels": [CUDA_KERNEL, CUBLAS_KERNEL], "switches": {"FLASHINFER_TOPK_ALGO": "auto"}},
            {"kernels": [CUBLAS_KERNEL]},
            "no longer the CUDA implementation: FLASHINFER_TOPK_ALGO is no longer set",
        ),
        ({"kernels": [CUDA_KERNEL]}, {"kernels": [CUBLAS_KERNEL]}, "now the cuBLAS implementation"),
        ({"kernels": [CUDA_KERNEL]}, {"kernels": [CUDA_KERNEL, CUBLAS_KERNEL]}, "now also the cuBLAS implementation"),
        ({"kernels": [CUDA_KERNEL]}, {"kernels": [CUDA_KERNEL.replace("RMS", "Layer")]}, None),
        ({"kernels": [CUDA_KERNEL]}, {"kernels": ["kernel_of_triton"]}, None),
        ({"kernels": None}, {"kernels": [CUDA_KERNEL]}, None),
    ],
)
def test_another_implementation_stands_in_the_verdict_in_words(before, after, sentence):
    [judged] = judge([run(row(**before))], [run(row(**after))], rules()).cases
    assert [one for one in words.remarks(judged) if "implementation" in one] == ([sentence] if sentence else [])
