import pytest


@pytest.mark.perf_cases("vllm_decode")
def test_vllm_decode(perf, case):
    perf(case)
