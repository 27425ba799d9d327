"""The GPUs of this host that a session may use, and how many workers that makes."""

from __future__ import annotations

import functools
import json
import os

import pytest

GPU_WORKERS = "perf_gpu_workers"  # in an ini file
VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_GPUS = "FLASHINFER_PERF_GPUS"  # those of the session, in a worker that sees one of them


def are_shared_out(config: pytest.Config) -> bool:
    """Whether the project lets each worker have a GPU, as the suite does."""
    from pytest_flashinfer_perf.api import cases

    return bool(config.getini(GPU_WORKERS)) or config.rootpath == cases.root()


def number(config: pytest.Config) -> int | None:
    """The number of workers for `-n auto`, if the project lets this plugin decide."""
    device = config.getoption("perf_device")
    if not are_shared_out(config) or device == "cpu:any" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return max(1, len(visible_to(device)))


def visible_to(device: str) -> list[str]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them, found without creating a context."""
    from pytest_flashinfer_perf.api import errors

    if device.startswith("cpu") or not errors.is_installed("torch"):
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get(VISIBLE, "")
    named = visible.split(",")[:count] if visible else [str(index) for index in range(count)]
    return named if device in ("auto", "cuda") else named[:1]


def of_session() -> list[str]:
    """The UUIDs of all GPUs that the session may use: a worker sees only its own."""
    import torch

    return _uuids(os.environ.get(ALL_GPUS, os.environ.get(VISIBLE))) if torch.cuda.device_count() else []


@functools.cache
def _uuids(visible: str | None) -> list[str]:
    """Ask another process for the GPUs, since what a process can see is settled when it first looks."""
    from pytest_flashinfer_perf.api import processes

    program = (
        "import json, torch; count = torch.cuda.device_count(); "
        "print(json.dumps([f'GPU-{torch.cuda.get_device_properties(i).uuid}' for i in range(count)]))"
    )
    try:
        printed = processes.answer(program, **({} if visible is None else {VISIBLE: visible}))
    except processes.NoAnswerError as error:
        raise processes.NoAnswerError(f"the GPUs of this machine could not be listed: {error}") from error
    uuids: list[str] = json.loads(printed.splitlines()[-1])
    return uuids
