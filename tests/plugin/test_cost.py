import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf import peaks
from pytest_flashinfer_perf.cost import Cost, Peaks, best_of, roofline

PEAKS = Peaks(4e12, {"bfloat16": 800e12}, "measured")


@given(st.floats(1, 1e18), st.floats(1, 1e15), st.floats(1e-7, 1e3))
def test_the_roof_is_the_longer_of_two_times(flops, moved, seconds):
    found = roofline(Cost(flops, moved, "bfloat16"), seconds, PEAKS)
    compute, memory = flops / 800e12, moved / 4e12
    assert found.bound == ("compute" if compute > memory else "memory")
    assert found.sol_pct == pytest.approx(100 * max(compute, memory) / seconds)


def test_an_unknown_roof_gives_no_number():
    assert roofline(Cost(1, 1, "bfloat16"), 1.0, None) is None
    assert roofline(Cost(1, 1, "int4"), 1.0, PEAKS) is None


def test_bytes_alone_have_a_roof():
    assert roofline(Cost(0, 4e12, "float32"), 2.0, PEAKS).sol_pct == pytest.approx(50)


def test_the_limit_is_the_larger_of_measured_and_stated():
    stated = Peaks(4.8e12, {"bfloat16": 989e12, "fp8_e4m3": 1979e12}, "datasheet")
    limit = best_of(Peaks(5e12, {"bfloat16": 800e12}, "measured"), stated)
    assert (limit.bytes_per_s, limit.flops_per_s) == (5e12, {"bfloat16": 989e12, "fp8_e4m3": 1979e12})
    assert best_of(None, None) is None


def test_a_cpu_has_no_roof_and_says_so(cpu):
    assert peaks.measured(cpu) is None
    assert peaks.datasheet(cpu) is None


def test_the_datasheet_of_an_h200(hopper):
    assert peaks.datasheet(hopper).bytes_per_s == pytest.approx(4.8e12)
