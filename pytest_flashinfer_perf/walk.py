"""The walk of one case: capability, memory, inputs, build, check, measure, check again."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from functools import partial

import torch

from pytest_flashinfer_perf import capability
from pytest_flashinfer_perf.case import Case
from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.measurement import Expected, Measurement, measure_target
from pytest_flashinfer_perf.routine import How
from pytest_flashinfer_perf.settings import Measuring
from pytest_flashinfer_perf.timing.run import Target, uses_graph


class CannotRunError(Exception):
    """Hardware, the library or memory does not allow this case here: a skip, with its reason."""


@dataclass(frozen=True)
class Walked:
    measurement: Measurement
    cost: Cost
    resolved: str


def obstacle(case: Case, device: Device) -> str | None:
    """Why this case cannot run here, in the order in which a user would mend it."""
    reason = capability.missing(case.backend.requires, device)
    if reason is None:
        reason = next(iter(case.backend.limits(case.params, case.backend_name, device)), None)
    return reason or _too_large(case, device)


def _too_large(case: Case, device: Device) -> str | None:
    needed, free = case.routine.footprint(case.params), device.free_bytes()
    if needed <= free:
        return None
    return f"needs about {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free on {device.torch}"


def walk(case: Case, measuring: Measuring, device: Device) -> Walked:
    reason = obstacle(case, device)
    if reason:
        raise CannotRunError(reason)
    try:
        return _measured(case, measuring, device)
    except torch.OutOfMemoryError as error:
        raise CannotRunError(f"ran out of memory: {str(error).splitlines()[0]}") from error
    finally:
        _give_back_memory(device)


def _measured(case: Case, measuring: Measuring, device: Device) -> Walked:
    routine, p = case.routine, case.params
    if device.is_gpu:
        torch.cuda.reset_peak_memory_stats(device.torch)
    x = routine.inputs(p, torch.Generator(device.torch).manual_seed(case.seed), device.torch)
    graph = uses_graph(measuring, device, routine.cuda_graph)
    built = case.backend.build(p, x, How(case.backend_name, graph))
    cost = routine.cost(p, x)
    measurement = measure_target(
        Target(built.launch, (x if built.takes is None else built.takes,), outputs=routine.outputs(x)),
        Expected(routine.reference(p, x), routine.tolerances(p, case.backend_name), partial(routine.decoded, p)),
        measuring,
        device,
        cuda_graph=graph,
    )
    return Walked(replace(measurement, flops=cost.flops, bytes=cost.bytes), cost, built.resolved)


def _give_back_memory(device: Device) -> None:
    gc.collect()
    if device.is_gpu:
        torch.cuda.empty_cache()
