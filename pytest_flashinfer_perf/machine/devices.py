"""The device of a run: find it by name, describe it, ask for its free memory."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from pytest_flashinfer_perf.errors import FlashinferPerfError


class DeviceError(FlashinferPerfError):
    """The requested device is not in this machine."""


@dataclass(frozen=True)
class Device:
    torch: torch.device
    name: str
    capability: tuple[int, int] | None
    uuid: str | None
    cache_bytes: int
    processors: int

    @property
    def is_gpu(self) -> bool:
        return self.capability is not None

    def free_bytes(self) -> int:
        if self.is_gpu:
            return torch.cuda.mem_get_info(self.torch)[0]
        return _available_memory()

    def synchronize(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.torch)

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        """Let torch use so many on the CPU: two on shared cores took 0.4 ms or 100 ms for a softmax, one 0.6 ms."""
        if self.is_gpu:
            yield
            return
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def touch(self) -> None:
        """Raise if the device can no longer be used: after a CUDA error every later call fails."""
        torch.zeros(1, device=self.torch)
        self.synchronize()

    def give_back_memory(self) -> None:
        """Release unused memory, so that it counts as free."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()


def find(spec: str) -> Device:
    """The device of this name; `auto` is the first GPU, or the CPU without one."""
    gpus = torch.cuda.device_count()
    if spec == "auto":
        spec = "cuda:0" if gpus else "cpu"
    if spec in ("cpu", "cpu:any"):
        return _cpu()
    index = _index(spec)
    if index is None or index >= gpus:
        devices = ", ".join(["cpu", *(f"cuda:{i}" for i in range(gpus))])
        raise DeviceError(f"there is no device {spec}, this machine has {devices}")
    return _gpu(index)


def is_cpu(spec: str) -> bool:
    """Whether this name, which may be wrong, is that of the CPU here."""
    return spec.startswith("cpu") or (spec == "auto" and not torch.cuda.device_count())


def visible() -> list[str]:
    """The names of all GPUs that can be seen, or of the CPU without one; opens none of them."""
    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]


def device_of(tensor: torch.Tensor) -> Device:
    return find(str(tensor.device))


def _index(spec: str) -> int | None:
    kind, _, number = spec.partition(":")
    if kind != "cuda" or not (number or "0").isdecimal():
        return None
    return int(number or 0)


@functools.cache
def _gpu(index: int) -> Device:
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    return Device(
        torch=torch.device("cuda", index),
        name=properties.name,
        capability=(properties.major, properties.minor),
        uuid=f"GPU-{properties.uuid}",
        cache_bytes=properties.L2_cache_size,
        processors=properties.multi_processor_count,
    )


CACHE_OF_A_CORE_KIB = 16 << 10


@functools.cache
def _cpu() -> Device:
    return Device(torch.device("cpu"), _cpu_name(), None, None, _last_level_cache(), torch.get_num_threads())


def _cpu_name() -> str:
    lines = _read("/proc/cpuinfo").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def _last_level_cache() -> int:
    """The largest cache that the kernel lists, limited per core: a virtual machine may list that of its host."""
    sizes = [_kib(p.read_text()) for p in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    most = CACHE_OF_A_CORE_KIB * (os.cpu_count() or 1)
    return min(max(sizes, default=CACHE_OF_A_CORE_KIB), most) << 10


def _kib(size: str) -> int:
    return int(size.strip().removesuffix("K"))


def _available_memory() -> int:
    fields = dict(line.split(":", 1) for line in _read("/proc/meminfo").splitlines())
    return int(fields["MemAvailable"].split()[0]) << 10 if "MemAvailable" in fields else 1 << 62


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
