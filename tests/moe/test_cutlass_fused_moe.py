import pytest


@pytest.mark.perf_cases("cutlass_fused_moe")
def test_cutlass_fused_moe(perf, case):
    perf(case)
