"""The kernels of a step, summed."""

import pytest

from pytest_flashinfer_perf.extensions.models.step import StepKernel
from pytest_flashinfer_perf.rows.fields import FieldError


def test_kernels_of_a_step_are_summed():
    kernel = StepKernel(name="gemm", count=2, weight_bytes=8.0, parameters=4, flops=16.0)
    assert kernel.times(3) == StepKernel(name="gemm", count=6, weight_bytes=24.0, parameters=12, flops=48.0)
    assert kernel.joined(kernel) == kernel.times(2)
    with pytest.raises(FieldError, match="gemm: count must be at least 1, got 0"):
        StepKernel(name="gemm", count=0)
