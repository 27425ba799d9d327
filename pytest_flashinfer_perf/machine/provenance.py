"""The machine and the software that produced a result."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.machine.requirements import PROJECT, version

if TYPE_CHECKING:
    import pytest

    from pytest_flashinfer_perf.machine.devices import Device

DISTRIBUTIONS = {
    "torch": "torch",
    "flashinfer": PROJECT,
    "cupti": "cupti-python",
    "cudnn_frontend": "nvidia-cudnn-frontend",
}


def machine(config: pytest.Config) -> dict[str, Any]:
    """The machine_info of pytest-benchmark, with what plugins add."""
    facts: dict[str, Any] = config.hook.pytest_benchmark_generate_machine_info(config=config)
    config.hook.pytest_benchmark_update_machine_info(config=config, machine_info=facts)
    return facts


@functools.cache
def versions() -> dict[str, Any]:
    """Versions, null for what is not installed. Imports torch, so call it only if a case ran."""
    import torch

    gpu = torch.cuda.is_available()
    return {
        **{name: version(distribution) for name, distribution in DISTRIBUTIONS.items()},
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "driver": driver_version() if gpu else None,
        "gpu": torch.cuda.get_device_name() if gpu else None,
    }


# Values from NVML: power, reasons for a lowered clock, versions; all None if NVML is not available.

# NVML's bits, without those for an idle card and for clocks set by the user.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal limit",
    0x40: "hardware thermal limit",
    0x80: "hardware power brake",
}


@dataclass(frozen=True)
class Telemetry:
    power_w: float | None = None
    throttle: str | None = None


def reasons(bits: int) -> str:
    return ", ".join(name for bit, name in REASONS.items() if bits & bit) or "none"


def read(device: Device) -> Telemetry:
    handle = _handle(device.uuid)
    nvml = _nvml()
    if nvml is None or handle is None:
        return Telemetry()
    return Telemetry(nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, reasons(_reason_bits(nvml, handle)))


def _reason_bits(nvml: Any, handle: Any) -> int:
    newer_or_older = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return int(next(getattr(nvml, name) for name in newer_or_older if hasattr(nvml, name))(handle))


@functools.cache
def _nvml() -> Any | None:
    """NVML, initialised; None if it is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - without a driver it raises its own errors
        return None
    return pynvml


@functools.cache
def _handle(uuid: str | None) -> Any | None:
    nvml = _nvml()
    if uuid is None or nvml is None:
        return None
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:  # a device that NVML does not list, such as a slice of a GPU
        return None


def health(uuid: str | None) -> dict[str, Any]:
    """Clocks, power and processes of a GPU; null for what the card or its driver does not report."""
    nvml, handle = _nvml(), _handle(uuid)
    if nvml is None or handle is None:
        return {}
    readers: dict[str, Callable[[], Any]] = {
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "sm_mhz_most": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "power_cap_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "power_cap_usual_w": lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1e3,
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "throttle": lambda: reasons(_reason_bits(nvml, handle)),
        "processes": lambda: [_process(nvml, p) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)],
    }
    return {name: _or_none(nvml, ask) for name, ask in readers.items()}


def _or_none(nvml: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except nvml.NVMLError:
        return None


def _process(nvml: Any, process: Any) -> dict[str, Any]:
    name = _or_none(nvml, lambda: nvml.nvmlSystemGetProcessName(process.pid))
    return {"pid": process.pid, "name": name, "bytes": process.usedGpuMemory}


def uuids() -> list[str]:
    """The UUIDs of the driver's GPUs, whether or not torch can use them."""
    nvml = _nvml()
    count = nvml.nvmlDeviceGetCount() if nvml else 0
    return [str(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i))) for i in range(count)] if nvml else []


def driver_version() -> str | None:
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())
