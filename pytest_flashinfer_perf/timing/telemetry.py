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
    if handle is None:
        return Telemetry()
    import pynvml

    return Telemetry(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3, reasons(_reason_bits(handle)))


def _reason_bits(handle: Any) -> int:
    import pynvml

    newer_or_older = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    return int(next(getattr(pynvml, name) for name in newer_or_older if hasattr(pynvml, name))(handle))


@functools.cache
def _handle(uuid: str | None) -> Any | None:
    if uuid is None:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # noqa: BLE001 - no NVML, no readings: the row says null
        return None


def driver_version() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001 - as above
        return None
