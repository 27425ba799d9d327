"""Names of the errors by which memory and CUDA end a call, whichever library raises them."""

from __future__ import annotations

import re

OUT_OF_MEMORY = "out-of-memory"
CUDA_ERROR = "cuda-error"

# The first that an error's text has names it; those that follow OUT_OF_MEMORY leave CUDA's context unusable.
ERRORS = (
    (OUT_OF_MEMORY, r"out of memory|can't allocate memory|bad_alloc|STATUS_ALLOC_FAILED|ERROR_OUT_OF_MEMORY"),
    # torch's advice under any CUDA error speaks of "device-side assertions"
    ("device-assert", r"device-side assert triggered|CUDA_ERROR_ASSERT"),
    ("illegal-access", r"illegal memory access|misaligned address|CUDA_ERROR_(ILLEGAL|MISALIGNED)_ADDRESS"),
    ("illegal-instruction", r"illegal instruction|invalid program counter|hardware stack error"),
    ("launch-failure", r"unspecified launch failure|CUDA_ERROR_LAUNCH_(FAILED|TIMEOUT)|ECC error"),
)
STICKY = frozenset(name for name, _ in ERRORS[1:])


def name_of(error: BaseException) -> str | None:
    """The name of the error, by its text; None of one that has nothing to do with the device."""
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    text = f"{type(error).__name__}: {error}"
    return next((name for name, pattern in ERRORS if re.search(pattern, text)), None)
