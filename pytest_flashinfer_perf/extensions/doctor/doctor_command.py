"""`flashinfer-perf doctor`: show what can be measured on this machine."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pytest_flashinfer_perf.api import (
    Device,
    capability,
    commands,
    devices,
    formatting,
    instruments,
    printing,
    provenance,
    requirements,
)
from pytest_flashinfer_perf.extensions.doctor import consequences, gpus
from pytest_flashinfer_perf.routines import all_routines

EXAMPLE = "example: flashinfer-perf doctor"
DESCRIPTION = """Show what can be measured on this machine, and why the rest cannot.
Exits with 0 if something can be measured on a GPU and FlashInfer has all that it requires, else with 1."""
INDENT = 11
CLOCK_PASS = (capability.gpu("the clock pass"), capability.package("cuda.core", "cuda-core", "the clock pass"))
# The part of a reason that names its backend or API: without it, equal reasons can be shown once.
SUBJECT = re.compile(r"^\S+ (?=needs\b)| of \S+( with backend \S+)?(?= on )")


def main(arguments: Sequence[str]) -> int:
    """Return 0 if something can be measured on a GPU, by a complete FlashInfer if there is one, else 1."""
    commands.parser_of("doctor", DESCRIPTION, EXAMPLE).parse_args(arguments)
    facts = examine()
    printing.show(lines(facts))
    return 0 if facts["measures_on_gpu"] and not facts["unmet"] else 1


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    for gpu in facts["gpus"]:
        yield from _titled(gpu["device"], _gpu(gpu))
    if facts["no_gpu"]:
        yield from _titled("GPU", f"none: {facts['no_gpu']}")
    yield from _titled("software", formatting.software(facts["software"]))
    if facts["flashinfer"]:
        yield from _titled("", facts["flashinfer"])
    yield from _requirements(facts)
    timed = {**facts["instruments"], "clock pass": facts["clock_pass"], **facts["beside"]}.items()
    answers = (f"{name}: {'yes' if why is None else f'no, {why}'}" for name, why in timed)
    yield from _titled("measured", "; ".join(answers))
    yield ""
    yield from _routines(facts["routines"])
    yield ""
    yield from _why_not(facts["routines"])
    yield ""
    yield _verdict(facts)


def _gpu(gpu: Mapping[str, Any]) -> str:
    hardware = (
        f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['processors']} SMs, "
        f"L2 {gpu['l2_bytes'] / 2**20:.0f} MiB, {gpu['free_bytes'] / 2**30:.1f} GiB free, {gpu['uuid']}"
    )
    if "sm_mhz" not in gpu:
        return f"{hardware}; clocks unknown: pip install nvidia-ml-py"
    clocks = f"SM clock {_or(gpu['sm_mhz'])} of {_or(gpu['sm_mhz_most'])} MHz, memory {_or(gpu['memory_mhz'])} MHz"
    power = f"{_or(gpu['power_w'])} W, capped at {_or(gpu['power_cap_w'])} of {_or(gpu['power_cap_usual_w'])} W"
    sizes = [(p, (p["bytes"] or 0) / 2**30) for p in gpu["processes"] or ()]
    others = ", ".join(f"{p['name'] or 'a process'} ({p['pid']}, {size:.1f} GiB)" for p, size in sizes)
    none = "its processes are unknown" if gpu["processes"] is None else "no other processes"
    processes = f"OTHER PROCESSES: {others}" if others else none
    persistence = {True: "on", False: "off: nvidia-smi -pm 1", None: "unknown"}[gpu["persistence"]]
    return f"{hardware}; {clocks}; {power}; throttled by {_or(gpu['throttle'])}; persistence {persistence}; {processes}"


def _or(value: float | str | None) -> str:
    return "?" if value is None else value if isinstance(value, str) else f"{value:.0f}"


def _requirements(facts: Mapping[str, Any]) -> Iterator[str]:
    """What FlashInfer lacks, and what it does without that where its code says so."""
    if not facts["unmet"]:
        required = facts["requirements"]
        yield from _titled("requires", f"{len(required)} packages, all installed") if required else ()
    for title, one in zip(("INCOMPLETE", *[""] * len(facts["unmet"])), facts["unmet"], strict=False):
        then = f"; then {one['then']}" if one["then"] else ""
        yield from _titled(title, f"{one['name']} {one['why']}: pip install '{one['requirement']}'{then}")


def _routines(routines: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    for name, backends in routines.items():
        able = " ".join(backend for backend, reason in backends.items() if reason is None) or "none"
        yield from formatting.wrapped(f"{name}: {able}", 2)


def _why_not(routines: Mapping[str, Mapping[str, str | None]]) -> Iterator[str]:
    """The reasons why cases cannot run, each once, with all routines and backends that it holds for."""
    reasons = [(name, b, reason) for name, backends in routines.items() for b, reason in backends.items() if reason]
    for reason, alike in formatting.grouped(reasons, lambda one: SUBJECT.sub("", one[2])):
        yield from formatting.wrapped(f"no: {reason}", 4)
        if reason.startswith("needs"):  # of a backend, in whatever routine
            whose = " ".join(dict.fromkeys(backend for _, backend, _ in alike))
        else:
            by_routine = formatting.grouped(alike, lambda one: one[0])
            whose = "; ".join(f"{routine}: {' '.join(b for _, b, _ in ones)}" for routine, ones in by_routine)
        yield from formatting.wrapped(f"    {whose}", 4)


def _verdict(facts: Mapping[str, Any]) -> str:
    all_of = [reason for backends in facts["routines"].values() for reason in backends.values()]
    able = f"{all_of.count(None)} of {len(all_of)} routines x backends run on {facts['device']}"
    return able if facts["measures_on_gpu"] else f"nothing can be measured on a GPU; {able}"


def _titled(title: str, text: str) -> list[str]:
    return formatting.wrapped(f"{title:<{INDENT}}{text}", INDENT)


# Examine this machine: its devices, software and instruments, and each routine x backend.

Facts = dict[str, Any]


def examine() -> Facts:
    """NVML before torch: once torch has touched a GPU, this process is on it too."""
    health = {uuid: gpus.health(uuid) for uuid in gpus.uuids()}
    local_gpus = [devices.find(f"cuda:{i}") for i in range(torch.cuda.device_count())]
    return {"no_gpu": _no_gpu(health), **facts_about(devices.find("auto"), local_gpus, health)}


def facts_about(device: Device, local_gpus: list[Device], health: Mapping[str, Facts]) -> Facts:
    """The facts that are shown, for the device that a run would measure."""
    # For each backend the reason why it cannot run here, or None; single shapes may have further limits.
    routines = {
        routine.name: {name: capability.missing(backend.requires, device) for name, backend in routine.backends.items()}
        for routine in all_routines().values()
    }
    unmet = requirements.unmet()
    there = {one.name: requirements.version(one.name) is not None for one in unmet}
    runs = any(reason is None for backends in routines.values() for reason in backends.values())
    return {
        "device": str(device.torch),
        "measures_on_gpu": device.is_gpu and runs,
        "gpus": [{**_described(gpu), **health.get(gpu.uuid or "", {})} for gpu in local_gpus],
        "software": provenance.versions(),
        "flashinfer": capability.flashinfer_import_error(),
        "requirements": requirements.versions(),
        "unmet": [{**u._asdict(), "then": consequences.without(u.name, is_there=there[u.name])} for u in unmet],
        "instruments": {name: one.missing(device) for name, one in instruments.INSTRUMENTS.items()},
        "clock_pass": capability.missing(CLOCK_PASS, device),
        "beside": dict(ChainMap(*commands.hooks().pytest_perf_examined(device=device))),
        "routines": routines,
    }


def _no_gpu(health: Mapping[str, Facts]) -> str | None:
    """Why torch sees no GPU, or None if it sees one."""
    if torch.cuda.device_count():
        return None
    if torch.version.cuda is None:
        listed = f"the driver lists {len(health)}, but " if health else ""
        return f"{listed}torch {torch.__version__} is built for CPUs only"
    if health:
        return f"the driver lists {len(health)}, but torch sees none: check CUDA_VISIBLE_DEVICES and the driver"
    return "no NVIDIA driver was found, or it lists no GPU"


def _described(gpu: Device) -> Facts:
    of_it = {"device": str(gpu.torch), "name": gpu.name, "uuid": gpu.uuid, "processors": gpu.processors}
    memory = {"l2_bytes": gpu.cache_bytes, "free_bytes": gpu.free_bytes()}
    return {**of_it, **memory, "compute_capability": ".".join(map(str, gpu.capability or ()))}
