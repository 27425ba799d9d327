import pytest


@pytest.mark.perf_cases("BatchDecodeWithPagedKVCacheWrapper")
def test_decode(perf, case):
    perf(case)
