"""Compile small CUDA kernels by NVRTC, once per device, and launch them on torch's current stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from pytest_flashinfer_perf.machine.capability import package
from pytest_flashinfer_perf.machine.devices import Device

# Blocks, threads in each, then the kernel's own arguments: pointers and 64-bit numbers.
Launch = Callable[..., None]


def missing(device: Device) -> str | None:
    return package("cuda.core", "cuda-core", "the clock pass")(device)


@functools.cache
def kernel(source: str, name: str, device: Device) -> Launch:
    from cuda.core import LaunchConfig, launch

    compiled, config = _compiled(source, device).get_kernel(name), functools.cache(LaunchConfig)

    def start(blocks: int, threads: int, *arguments: int) -> None:
        stream = _stream(torch.cuda.current_stream(device.torch).cuda_stream)
        launch(stream, config(grid=blocks, block=threads), compiled, *arguments)

    return start


@functools.cache
def _compiled(source: str, device: Device) -> Any:
    from cuda.core import Device as CudaDevice
    from cuda.core import Program, ProgramOptions

    cuda = CudaDevice(device.torch.index)
    cuda.set_current()
    return Program(source, "c++", ProgramOptions(arch=f"sm_{cuda.arch}")).compile("cubin")


@functools.lru_cache(maxsize=8)
def _stream(handle: int) -> object:
    from cuda.core import Stream

    return Stream.from_handle(handle)
