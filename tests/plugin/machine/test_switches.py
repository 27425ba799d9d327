"""Which variables of the environment are written into rows, and so published."""

import os

import pytest

from pytest_flashinfer_perf.machine.switches import NAMES, switches

PREFIXES = ("FLASHINFER", "B12X", "CAKE", "CUTE_DSL", "GDN", "SGLANG_GDN", "TRTLLM", "XQA")
SECRET = (
    "TOKEN",
    "API_KEY",
    "PASSWORD",
    "SECRET",
    "CREDENTIALS",
    "CUBINS_REPOSITORY",
    "EXTRA_CFLAGS",
    "USE_CUDA_NORM2",
)


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES & os.environ.keys():
        monkeypatch.delenv(name)
    return monkeypatch


def test_only_what_chooses_kernels_is_kept(environment):
    for name in (f"{prefix}_{secret}" for prefix in PREFIXES for secret in SECRET):
        environment.setenv(name, "hidden")
    assert switches() == {}
    environment.setenv("FLASHINFER_USE_CUDA_NORM", "1")
    environment.setenv("B12X_MHC_PREFILL_TF32_TMA_LONG_STAGES", "3")
    environment.setenv("XQA_NB_SUB_SEQ", "")
    assert list(switches().items()) == [
        ("B12X_MHC_PREFILL_TF32_TMA_LONG_STAGES", "3"),
        ("FLASHINFER_USE_CUDA_NORM", "1"),
        ("XQA_NB_SUB_SEQ", ""),
    ]
