"""What FlashInfer does without a package that it requires."""

from __future__ import annotations

from collections.abc import Mapping

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


def without(package: str, *, is_there: bool = False) -> str | None:
    """What FlashInfer does without this package, or without one of the packages that it consists of.

    One that is there in another version may be imported all the same, as cuda-bindings 13.3 was for 13.1 on an H200.
    """
    consequence = next(
        (then for name, then in WITHOUT.items() if package == name or package.startswith(f"{name}-")), None
    )
    return None if is_there and consequence == NO_IMPORT else consequence
