from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted

from pytest_flashinfer_perf.engine import peaks
from pytest_flashinfer_perf.spec.routine import Cost, Peaks, best_of, roofline

PEAKS = Peaks(4e12, {"bfloat16": 800e12}, "measured")


@given(st.floats(1, 1e18), st.floats(1, 1e15), st.floats(1e-7, 1e3))
def test_the_roof_is_the_longer_of_two_times_and_of_a_type_without_a_peak_the_memorys(flops, moved, seconds):
    compute, memory = flops / 800e12, moved / 4e12
    for dtype, bound, longer in (
        ("bfloat16", "compute" if compute > memory else "memory", max(compute, memory)),
        ("int8", "memory?", memory),
    ):
        found = roofline(Cost(flops, moved, dtype), seconds, PEAKS)
        assert (found.bound, found.sol_pct) == (bound, pytest.approx(100 * longer / seconds))


def test_bytes_alone_have_a_roof_and_an_unknown_one_gives_no_number():
    found = roofline(Cost(0, 4e12, "int8"), 2.0, PEAKS)
    assert (found.sol_pct, found.bound) == (pytest.approx(50), "memory")
    unknown = ((Cost(1, 1, "bfloat16"), None), (Cost(1, 0, "int4"), PEAKS), (Cost(0, 0, "bfloat16"), PEAKS))
    assert [roofline(cost, 1.0, peaks) for cost, peaks in unknown] == [None] * 3


def test_the_limit_is_the_larger_of_measured_and_stated():
    stated = Peaks(4.8e12, {"bfloat16": 989e12, "fp8_e4m3": 1979e12}, "datasheet")
    limit = best_of([Peaks(5e12, {"bfloat16": 800e12}, "measured"), stated])
    assert (limit.bytes_per_s, limit.flops_per_s) == (5e12, {"bfloat16": 989e12, "fp8_e4m3": 1979e12})
    assert best_of([]) is None


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
