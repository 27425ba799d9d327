"""Which variables of the environment are written into rows, and so published."""

import os

import pytest

from pytest_flashinfer_perf.machine.switches import NAMES, switches

PLAIN = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a 10.0f", "FLASHINFER_TOPK_ALGO": "auto", "XQA_NB_SUB_SEQ": "", "B12X_X": "3"}
SECRETS = ("hidden", "/home/me/x", "https://me:hidden@host/x", "hf_0123456789", "123456789", "-O3 -DKEY=1", "0x12ab")


@pytest.fixture
def environment(monkeypatch):
    for name in filter(NAMES.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    return monkeypatch


def test_what_chooses_kernels_is_kept_with_values_that_tell_no_secret(environment):
    for name, value in {**PLAIN, "FLASHINFER_LOGLEVEL": "3", "FLASHINFER_CACHE_DIR": "1", "MY_TOKEN": "1"}.items():
        environment.setenv(name, value)
    assert switches() == PLAIN
    for value in SECRETS:
        environment.setenv("FLASHINFER_TOKEN", value)
        assert switches() == {**PLAIN, "FLASHINFER_TOKEN": "set"}
