import pytest


@pytest.mark.perf_cases("mm_fp4")
def test_mm_fp4(perf, case):
    perf(case)
