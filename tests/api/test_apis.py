import pytest


@pytest.mark.perf_apis
def test_api(perf, case):
    perf(case)
