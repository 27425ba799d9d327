"""The machine and the software that produced a result."""

from __future__ import annotations

import functools
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


def read(device: Device) -> Telemetry:
    library, handle = nvml(), handle_of(device.uuid)
    if library is None or handle is None:
        return Telemetry()
    return Telemetry(library.nvmlDeviceGetPowerUsage(handle) / 1e3, throttle(handle))


def throttle(handle: Any) -> str:
    """The reasons why a GPU's clock is lowered."""
    library = nvml()
    newer_or_older = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    bits = int(next(getattr(library, name) for name in newer_or_older if hasattr(library, name))(handle))
    return ", ".join(name for bit, name in REASONS.items() if bits & bit) or "none"


@functools.cache
def nvml() -> Any | None:
    """NVML, initialised; None if it is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - without a driver it raises its own errors
        return None
    return pynvml


@functools.cache
def handle_of(uuid: str | None) -> Any | None:
    library = nvml()
    if uuid is None or library is None:
        return None
    try:
        return library.nvmlDeviceGetHandleByUUID(uuid)
    except library.NVMLError:  # a device that NVML does not list, such as a slice of a GPU
        return None


def driver_version() -> str | None:
    library = nvml()
    return None if library is None else str(library.nvmlSystemGetDriverVersion())
