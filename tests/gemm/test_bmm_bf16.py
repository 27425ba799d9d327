import pytest


@pytest.mark.perf_cases("bmm_bf16")
def test_bmm_bf16(perf, case):
    perf(case)
