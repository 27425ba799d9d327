import pytest


@pytest.mark.perf_cases("mm_fp8")
def test_mm_fp8(perf, case):
    perf(case)
