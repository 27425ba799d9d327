"""How a call has ended is known by its error's text."""

import pytest
import torch

from pytest_flashinfer_perf.machine import device_errors


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (
            RuntimeError(
                "CUDA error: an illegal memory access was encountered\n"
                "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
            ),
            "illegal-access",
        ),
        (RuntimeError("Triton Error [CUDA]: device-side assert triggered"), "device-assert"),
        (RuntimeError("CUDA error: misaligned address"), "illegal-access"),
        (RuntimeError("CUDA error: unspecified launch failure"), "launch-failure"),
        (Exception("CUDA_ERROR_ILLEGAL_ADDRESS: a kernel"), "illegal-access"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), "out-of-memory"),
        (RuntimeError("CUDA error: out of memory"), "out-of-memory"),
        (MemoryError(), "out-of-memory"),
        (RuntimeError("CUDA error: invalid argument"), None),
        (AssertionError("2 != 3"), None),
    ],
)
def test_an_error_is_known_by_its_text(error, outcome):
    assert device_errors.name_of(error) == outcome
