import pytest


@pytest.mark.perf_cases("BatchMLAPagedAttentionWrapper")
def test_mla(perf, case):
    perf(case)
