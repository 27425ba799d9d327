import pytest


@pytest.mark.perf_cases("BatchPrefillWithRaggedKVCacheWrapper")
def test_ragged_prefill(perf, case):
    perf(case)
