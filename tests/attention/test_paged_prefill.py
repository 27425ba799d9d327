import pytest


@pytest.mark.perf_cases("BatchPrefillWithPagedKVCacheWrapper")
def test_paged_prefill(perf, case):
    perf(case)
