import pytest


@pytest.mark.perf_cases("gemm_fp8_nt_groupwise")
def test_gemm_fp8_nt_groupwise(perf, case):
    perf(case)
