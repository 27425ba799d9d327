"""pytest test_scaled_add.py: other shapes than those of a tier stand in the test."""

import pytest
from scaled_add import ScaledAdd, scaled_add


@pytest.mark.perf_cases(scaled_add, ScaledAdd(rows=8, columns=256), "--rows 64 --columns 4096 --scale 2")
def test_scaled_add(perf, case):
    perf(case)
