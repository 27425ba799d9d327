import pytest


@pytest.mark.perf_cases("mm_bf16")
def test_mm_bf16(perf, case):
    perf(case)
