"""The GPUs of this machine as their driver describes them: clocks, power and who else is on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_flashinfer_perf.api import provenance


def uuids() -> list[str]:
    """The UUIDs of the driver's GPUs, whether or not torch can use them."""
    nvml = provenance.nvml()
    if nvml is None:
        return []
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [str(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]


def health(uuid: str) -> dict[str, Any]:
    """Clocks, power and processes of a GPU; null for what the card or its driver does not report."""
    nvml, handle = provenance.nvml(), provenance.handle_of(uuid)
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
        "throttle": lambda: provenance.throttle(handle),
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
