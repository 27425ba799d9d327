import pytest


@pytest.mark.perf_cases("bmm_fp8")
def test_bmm_fp8(perf, case):
    perf(case)
