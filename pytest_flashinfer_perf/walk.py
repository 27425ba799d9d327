"""The walk of one case: capability, memory, inputs, build, check, measure, check again."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_flashinfer_perf import autotune, capability
from pytest_flashinfer_perf.autotune import Choice
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
    choice: Choice | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def obstacle(case: Case, device: Device) -> str | None:
    """Why this case cannot run here, in the order in which a user would mend it."""
    reason = capability.missing(case.backend.requires, device)
    if reason is None:
        reason = next(iter(case.backend.limits(case.params, case.backend_name, device)), None)
    return reason or _untunable(case) or _too_large(case, device)


def _untunable(case: Case) -> str | None:
    if not getattr(case.params, "autotune", False) or case.backend.tunes:
        return None
    return f"{case.backend_name} has nothing to autotune: leave out --autotune"


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
    target = Target(built.launch, (x if built.takes is None else built.takes,), outputs=routine.outputs(x))
    choice = _settled(case, target)
    cost = routine.cost(p, x)
    measurement = measure_target(
        target,
        Expected(routine.reference(p, x), routine.tolerances(p, case.backend_name), partial(routine.decoded, p)),
        measuring,
        device,
        cuda_graph=graph,
    )
    resolved = choice.backend(routine.backends) if choice and built.resolved == "auto" else built.resolved
    return Walked(replace(measurement, flops=cost.flops, bytes=cost.bytes), cost, resolved, choice, routine.facts(p, x))


def _settled(case: Case, target: Target) -> Choice | None:
    """Which kernel FlashInfer's autotuner has chosen, before anything is timed."""
    if not case.backend.tunes:
        return None
    tune = getattr(case.params, "autotune", False)
    if case.autotune_cache:
        autotune.verify(case.autotune_cache, tune=tune)
    return autotune.settle(target, tune=tune, cache=case.autotune_cache)


def _give_back_memory(device: Device) -> None:
    gc.collect()
    if device.is_gpu:
        torch.cuda.empty_cache()
