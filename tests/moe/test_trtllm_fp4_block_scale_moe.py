import pytest


@pytest.mark.perf_cases("trtllm_fp4_block_scale_moe")
def test_trtllm_fp4_block_scale_moe(perf, case):
    perf(case)
