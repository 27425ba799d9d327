"""Which implementation a kernel is of, by its name, and by what FlashInfer chooses between implementations.

FlashInfer 0.6.18 to 0.7.2 choose by what can be imported (`CUTE_DSL_AVAILABLE`, `CUDNN_AVAILABLE`, `_USE_CUDA_NORM` and
their like), by variables of the environment, and by the shape. The choice is seen in the names of the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# By how the names of kernels look, mangled or not. extern "C", Triton and cuTile leave names that do not say whose.
NAMED = (
    ("CuTe DSL", re.compile(r"^kernel_cutlass_")),
    ("torch", re.compile(r"2at6native|\bat::native::|2at4cuda|\bat::cuda::")),
    ("cuDNN", re.compile(r"cudnn")),
    ("cuBLAS", re.compile(r"^nvjet_|cublas")),
    ("CUDA", re.compile(r"^_Z|::")),
)
UNKNOWN = "unknown"
NO_KERNEL = re.compile(r"^MEM(SET|CPY)")
# The package without which FlashInfer has no such implementation.
PACKAGE = {"CuTe DSL": "nvidia-cutlass-dsl", "cuDNN": "nvidia-cudnn-frontend"}


def of_kernels(kernels: Iterable[str]) -> tuple[str, ...]:
    """The implementations in the order in which their kernels ran."""
    return tuple(dict.fromkeys(_of_kernel(one) for one in kernels if not NO_KERNEL.search(one)))


def _of_kernel(kernel: str) -> str:
    return next((name for name, looks in NAMED if looks.search(kernel)), UNKNOWN)


def is_of(package: str, name: str) -> bool:
    return package == name or package.startswith(f"{name}-")
