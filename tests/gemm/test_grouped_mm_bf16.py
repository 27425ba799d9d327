import pytest


@pytest.mark.perf_cases("grouped_mm_bf16")
def test_grouped_mm_bf16(perf, case):
    perf(case)
