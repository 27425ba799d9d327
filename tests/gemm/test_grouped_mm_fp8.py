import pytest


@pytest.mark.perf_cases("grouped_mm_fp8")
def test_grouped_mm_fp8(perf, case):
    perf(case)
