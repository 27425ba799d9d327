"""Which software produced a number."""

from __future__ import annotations

import functools
from importlib import metadata
from typing import Any

DISTRIBUTIONS = {
    "torch": "torch",
    "flashinfer": "flashinfer-python",
    "cupti": "cupti-python",
    "cudnn_frontend": "nvidia-cudnn-frontend",
}


@functools.cache
def versions() -> dict[str, Any]:
    """Null for what is not installed; imports torch, so only ask where a case ran."""
    import torch

    from pytest_flashinfer_perf.timing.telemetry import driver_version

    gpu = torch.cuda.is_available()
    return {
        **{name: _version(distribution) for name, distribution in DISTRIBUTIONS.items()},
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "driver": driver_version() if gpu else None,
        "gpu": torch.cuda.get_device_name() if gpu else None,
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
