"""What NVML says beside a measurement: power, reasons for a lowered clock, versions; nothing where it is not there."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.devices import Device

# NVML's bits, without those that only say that the card is idle or runs at the clocks somebody set.
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
    """NVML, started; None where it is not there, and what it would have read is null in the row."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - without a driver it raises errors of its own
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


def driver_version() -> str | None:
    nvml = _nvml()
    return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())
