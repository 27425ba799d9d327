"""The machine and the software that produced a result."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytest_flashinfer_perf.machine.requirements import PROJECT, version

DISTRIBUTIONS = {
    "torch": "torch",
    "flashinfer": PROJECT,
    "cupti": "cupti-python",
    "cudnn_frontend": "nvidia-cudnn-frontend",
}


def machine(config: pytest.Config) -> dict[str, Any]:
    """The machine_info of pytest-benchmark, with what plugins add."""
    made: dict[str, Any] = config.hook.pytest_benchmark_generate_machine_info(config=config)
    config.hook.pytest_benchmark_update_machine_info(config=config, machine_info=made)
    return made


@functools.cache
def versions() -> dict[str, Any]:
    """Versions, null for what is not installed. Imports torch, so call it only if a case ran."""
    import torch

    from pytest_flashinfer_perf.machine.telemetry import driver_version

    gpu = torch.cuda.is_available()
    return {
        **{name: version(distribution) for name, distribution in DISTRIBUTIONS.items()},
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "driver": driver_version() if gpu else None,
        "gpu": torch.cuda.get_device_name() if gpu else None,
    }
