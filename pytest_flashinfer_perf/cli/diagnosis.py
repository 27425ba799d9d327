"""Examine this machine: its devices, software, instruments and caches, and each routine x backend."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_flashinfer_perf.machine import (
    capability,
    devices,
    implementations,
    nvrtc,
    provenance,
    requirements,
    telemetry,
)
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring import peaks
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.routine import AnyRoutine
from pytest_flashinfer_perf.timing.instruments import INSTRUMENTS

Facts = dict[str, Any]


def examine() -> Facts:
    """NVML before torch: once torch has touched a GPU, this process is on it too."""
    seen = {uuid: telemetry.health(uuid) for uuid in telemetry.uuids()}
    found = [devices.find(f"cuda:{i}") for i in range(torch.cuda.device_count())]
    return {"no_gpu": _no_gpu(seen), **facts_about(devices.find("auto"), found, seen)}


def facts_about(device: Device, gpus: list[Device], seen: Mapping[str, Facts]) -> Facts:
    """The facts that are shown, for the device that a run would measure."""
    routines = {routine.name: _backends(routine, device) for routine in all_routines().values()}
    runs = any(reason is None for backends in routines.values() for reason in backends.values())
    return {
        "device": str(device.torch),
        "measures_on_gpu": device.is_gpu and runs,
        "gpus": [{**_described(gpu), **seen.get(gpu.uuid or "", {})} for gpu in gpus],
        "software": provenance.versions(),
        "flashinfer": capability.flashinfer_import_error(),
        "requirements": requirements.versions(),
        "unmet": [{**one._asdict(), "then": _then(one.name)} for one in requirements.unmet()],
        "instruments": {name: one.missing(device) for name, one in INSTRUMENTS.items()},
        "clock_pass": capability.missing((capability.gpu("the clock pass"), nvrtc.missing), device),
        "caches": {"roof": _path(peaks.cache_path(device)), "kernels": _kernels()},
        "routines": routines,
    }


def _then(package: str) -> str | None:
    return implementations.without(package, is_there=requirements.version(package) is not None)


def _no_gpu(seen: Mapping[str, Facts]) -> str | None:
    """Why torch sees no GPU, or None if it sees one."""
    if torch.cuda.device_count():
        return None
    if torch.version.cuda is None:
        found = f"the driver lists {len(seen)}, but " if seen else ""
        return f"{found}torch {torch.__version__} is built for CPUs only"
    if seen:
        return f"the driver lists {len(seen)}, but torch sees none: check CUDA_VISIBLE_DEVICES and the driver"
    return "no NVIDIA driver was found, or it lists no GPU"


def _described(gpu: Device) -> Facts:
    return {
        "device": str(gpu.torch),
        "name": gpu.name,
        "uuid": gpu.uuid,
        "compute_capability": ".".join(map(str, gpu.capability or ())),
        "processors": gpu.processors,
        "l2_bytes": gpu.cache_bytes,
        "free_bytes": gpu.free_bytes(),
    }


def _backends(routine: AnyRoutine, device: Device) -> dict[str, str | None]:
    """For each backend the reason why it cannot run here, or None; single shapes may have further limits."""
    return {name: capability.missing(backend.requires, device) for name, backend in routine.backends.items()}


def _kernels() -> Facts | None:
    """FlashInfer's modules that are compiled already; the others are compiled when a case first needs them."""
    folder = None if capability.flashinfer_import_error() else capability.api("jit.env.FLASHINFER_JIT_DIR")
    return {"folder": str(folder), "built": len(list(Path(folder).glob("*/*.so")))} if folder else None


def _path(path: Path | None) -> str | None:
    return str(path) if path else None
