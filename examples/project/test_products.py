"""pytest test_products.py -k "mine or torch" --perf-suite=smoke"""

import pytest


@pytest.mark.perf_cases("mm_bf16")
def test_mm_bf16(perf, case):
    perf(case)
