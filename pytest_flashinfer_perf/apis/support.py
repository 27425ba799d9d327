"""Where an API can run, from its own decorators; without any, the library's error is the reason of the skip."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from pytest_flashinfer_perf.apis import exceptions, registry
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.capability import Requirement
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.spec.params import Params


def requirements(api: Api, backend: str) -> tuple[Requirement, ...]:
    packages = (capability.package(module, name, backend) for module, name in capability.PACKAGES.get(backend, ()))
    compilers = (capability.tile_compiler,) if backend == "cutile" else ()
    known = (capability.gpu(api.path), several_gpus(api), *_hardware(api), capability.flashinfer())
    return (*known, *packages, *compilers, declared(api, backend))


def _hardware(api: Api) -> Iterator[Requirement]:
    """Of APIs without a decorator, whose kernels would be downloaded before they are refused."""
    runs_as = exceptions.by_part(exceptions.RUNS_AS, api.path)
    if runs_as:
        yield capability.compute_capability(api.path, *capability.HARDWARE[runs_as])


def several_gpus(api: Api) -> Requirement:
    def require(_device: Device) -> str | None:
        alone = exceptions.weakness(api) == exceptions.ONE_RANK
        return f"{api.path} exchanges data between GPUs, and its template makes one rank alone" if alone else None

    return require


def declared(api: Api, backend: str) -> Requirement:
    def require(device: Device) -> str | None:
        try:
            function = registry.located(api.path)
        except (ImportError, AttributeError) as error:
            return f"{api.path} cannot be imported: {error}"
        return _refusal(function, api.path, backend, device)

    return require


def _refusal(function: Any, path: str, backend: str, device: Device) -> str | None:
    if device.capability is None:
        return None
    here = device.capability[0] * 10 + device.capability[1]
    chosen = backend not in (registry.ONLY, "auto") and getattr(function, "has_backend_choices", bool)()
    with suppress(AttributeError, ValueError):  # one that declares nothing of this
        ask = partial(function.is_backend_supported, backend) if chosen else function.is_compute_capability_supported
        if not ask(here):
            subject = f"{path} with backend {backend}" if chosen else path
            where = ".".join(map(str, device.capability))
            return f"flashinfer declares no support of {subject} on compute capability {where}"
    return None


def on_a_cpu(_params: Params, _backend: str, device: Device) -> Iterator[str]:
    if device.is_gpu:
        yield "torch is the template's reference, which is timed on a CPU only"
