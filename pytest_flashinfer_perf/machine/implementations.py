"""Which implementation a kernel is of, by its name, and by what FlashInfer chooses between implementations.

FlashInfer 0.6.18 to 0.7.2 choose by what can be imported (`CUTE_DSL_AVAILABLE`, `CUDNN_AVAILABLE`, `_USE_CUDA_NORM` and
their like), by variables of the environment, and by the shape. The choice is seen in the names of the kernels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

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

NO_IMPORT = "flashinfer does not import"
# What FlashInfer 0.7.2 does without a package that it requires; read in its source, and by hiding each from its import.
WITHOUT: Mapping[str, str] = {
    "nvidia-cutlass-dsl": "rmsnorm, layernorm and their fused forms silently run older CUDA kernels, top_k_varlen "
    "silently runs another; mm_bf16 and bmm_bf16 with backend auto raise; GDN, KDA, FP4 norms and all CuTe DSL "
    "backends have no kernel",
    "nvidia-cudnn-frontend": "backend auto of GEMMs and attention silently goes without cuDNN, cuDNN's attention "
    "silently runs downloaded kernels; all else of cuDNN raises",
    "cuda-tile": "cuTile backends raise",
    "nccl4py": "moe_ep has no NCCL backend",
    "nccl-extensions": "moe_ep has no NCCL backend",
    "ninja": "kernels are not compiled",
    **dict.fromkeys(("apache-tvm-ffi", "cuda-python", "cuda-bindings", "numpy", "nvidia-ml-py"), NO_IMPORT),
    **dict.fromkeys(("packaging", "requests", "torch", "tqdm"), NO_IMPORT),
}


def of_kernels(kernels: Iterable[str]) -> tuple[str, ...]:
    """The implementations in the order in which their kernels ran."""
    return tuple(dict.fromkeys(_of_kernel(one) for one in kernels if not NO_KERNEL.search(one)))


def _of_kernel(kernel: str) -> str:
    return next((name for name, looks in NAMED if looks.search(kernel)), UNKNOWN)


def without(package: str, *, is_there: bool = False) -> str | None:
    """What FlashInfer does without this package, or without one of the packages that it consists of.

    One that is there in another version may be imported all the same, as cuda-bindings 13.3 was for 13.1 on an H200.
    """
    consequence = next((then for name, then in WITHOUT.items() if is_of(package, name)), None)
    return None if is_there and consequence == NO_IMPORT else consequence


def is_of(package: str, name: str) -> bool:
    return package == name or package.startswith(f"{name}-")
