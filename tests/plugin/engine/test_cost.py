"""What a GPU could do: as its datasheet has it, and as products and copies are measured on it."""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scripted import Scripted

from pytest_flashinfer_perf.engine import peaks


def test_a_datasheet_has_every_type_that_the_gpu_multiplies(cpu, hopper):
    assert peaks.measured(cpu) is peaks.datasheet(cpu) is None, "a CPU has no roof"
    assert peaks.datasheet(hopper).bytes_per_s == pytest.approx(4.8e12)
    for name in peaks.DATASHEET:
        rates = peaks.datasheet(replace(hopper, name=name)).flops_per_s
        assert {"float32", "tf32", "bfloat16", "float16"} <= rates.keys()
        assert rates["bfloat16"] == pytest.approx(2 * rates["tf32"], rel=0.02), "both dense"
        assert rates["float32"] < rates["tf32"]


class EachTakesASecond(Scripted):
    """Keeps what torch was set to when it was asked for calls."""

    name = "cupti"

    def __init__(self):
        super().__init__(1.0)
        self.seen = []

    def seconds_of(self, answer):
        self.seen.append(_set())
        return super().seconds_of(answer)


@pytest.fixture
def clock(monkeypatch):
    instrument = EachTakesASecond()
    monkeypatch.setitem(peaks.INSTRUMENTS, "cupti", instrument)
    monkeypatch.setattr(peaks.nvrtc, "missing", lambda _: "there is no GPU")
    monkeypatch.setattr(peaks, "COPY_BYTES", 1 << 10)
    monkeypatch.setattr(peaks, "PRODUCTS", ((16, 16, 32),))
    monkeypatch.setattr(peaks, "FP32_PRODUCTS", ((16, 16, 16), (16, 32, 16)))
    return instrument.seen


def _set():
    return torch.backends.cuda.matmul.fp32_precision


def test_fp32_and_tf32_are_measured_beside_the_narrower_types_where_a_gpu_has_them(hopper, clock):
    before = _set()
    found = peaks._measure(replace(hopper, capability=(8, 0)))
    assert found.flops_per_s == dict.fromkeys(("bfloat16", "float16", "float32", "tf32"), 2 * 16 * 32 * 16)
    calls = len(peaks.FP32_PRODUCTS) * peaks.FP32_ROUNDS * peaks.CALLS
    assert (clock.count("ieee"), clock.count("tf32")) == (calls, calls)
    assert _set() == before
    assert "tf32" not in peaks._measure(replace(hopper, capability=(7, 5))).flops_per_s
    assert clock.count("tf32") == calls


@pytest.mark.parametrize("set_by_user", ["none", "ieee", "tf32"])
def test_what_the_user_has_set_for_products_comes_back(set_by_user):
    with peaks.fp32_products(set_by_user):
        for precision in ("ieee", "tf32"):
            with suppress(MemoryError), peaks.fp32_products(precision):
                assert _set() == precision
                raise MemoryError
            assert _set() == set_by_user


@pytest.mark.parametrize("set_by_user", ["highest", "high", "medium"])
def test_what_the_user_has_set_in_a_torch_before_2_9_comes_back(set_by_user, monkeypatch):
    said = [set_by_user]
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace()))
    read, write = (lambda: said[-1]), said.append
    older = {"get_float32_matmul_precision": read, "set_float32_matmul_precision": write, "backends": backends}
    monkeypatch.setattr(peaks, "torch", SimpleNamespace(**older))
    for precision, name in (("ieee", "highest"), ("tf32", "high")):
        with peaks.fp32_products(precision):
            assert said[-1] == name
        assert said[-1] == set_by_user
