import pytest


@pytest.mark.perf_cases("group_gemm_fp8_nt_groupwise")
def test_group_gemm_fp8_nt_groupwise(perf, case):
    perf(case)
