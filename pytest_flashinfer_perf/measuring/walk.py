"""The walk of one case: capability, memory, inputs, build, check, measure, check again."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_flashinfer_perf.checking import sample
from pytest_flashinfer_perf.config import tolerances
from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring import autotune, changing
from pytest_flashinfer_perf.measuring.autotune import Choice
from pytest_flashinfer_perf.measuring.measurement import Measurement, measure_target
from pytest_flashinfer_perf.measuring.verification import Expected
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.running import compiling, outcomes
from pytest_flashinfer_perf.running.compiling import CompileError
from pytest_flashinfer_perf.spec.case import Case, backend_named, routine_named
from pytest_flashinfer_perf.spec.cost import Cost
from pytest_flashinfer_perf.spec.routine import AnyRoutine, How, Shape
from pytest_flashinfer_perf.timing import cold
from pytest_flashinfer_perf.timing.run import uses_graph
from pytest_flashinfer_perf.timing.target import Target


class OutOfMemoryError(FlashinferPerfError):
    """It was estimated to fit."""

    outcome = outcomes.OUT_OF_MEMORY


class CannotRunError(FlashinferPerfError):
    """Hardware, the library or memory does not allow this case here: a skip, with its reason."""


@dataclass(frozen=True)
class Walked:
    measurement: Measurement
    cost: Cost
    resolved: str
    choice: Choice | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None


def obstacle(case: Case, device: Device, most_gib: float | None = None) -> str | None:
    """Why this case cannot run here, in the order in which a user would mend it."""
    reason = capability.missing(case.backend.requires, device)
    if reason is None:
        reason = next(iter(case.backend.limits(case.params, case.backend_name, device)), None)
    return reason or _untunable(case) or _too_large(case, device, most_gib)


def _untunable(case: Case) -> str | None:
    if not getattr(case.params, "autotune", False) or case.backend.tunes:
        return None
    return f"{case.backend_name} has nothing to autotune: leave out --autotune"


def _too_large(case: Case, device: Device, most_gib: float | None) -> str | None:
    needed = _footprint(case)
    if most_gib is not None and needed > most_gib:
        return f"needs more than the {most_gib:g} GiB of --perf-max-memory"
    if needed > device.free_bytes() / 2**30:
        device.give_back_memory()
    free = device.free_bytes() / 2**30
    return f"needs about {needed:.1f} GiB, {free:.1f} GiB are free on {device.torch}" if needed > free else None


def _footprint(case: Case) -> float:
    """In GiB."""
    return case.routine.footprint(case.params) / 2**30


def check_answer(routine: str | AnyRoutine, backend: str, params: Any, seed: int = 0, device: str = "auto") -> None:
    """Call a backend, untimed: WrongAnswerError where it is wrong, CannotRunError where it cannot be called here."""
    known = routine_named(routine, all_routines()) if isinstance(routine, str) else routine
    case = Case(known, Shape(params), backend_named(backend, known), seed)
    walk(case, Measuring(), Checking(refcheck="only"), devices.find(device))


def walk(case: Case, measuring: Measuring, checking: Checking, device: Device, most_gib: float | None = None) -> Walked:
    reason = obstacle(case, device, most_gib)
    if reason:
        raise CannotRunError(reason)
    compiling.watch()
    if device.is_gpu:
        devices.freeze_imports()
    try:
        return _measured(case, measuring, checking, device)
    except CompileError:
        raise
    except (RuntimeError, MemoryError) as error:
        if outcomes.of_error(error) != outcomes.OUT_OF_MEMORY:
            raise
        ran_out = str(error).partition("\n")[0]
        traceback.clear_frames(error.__traceback__)  # they hold what there is no memory for
    finally:
        if device.is_gpu:  # elsewhere when it is short: to look for what nobody holds takes longer than a small case
            device.give_back_memory()
    device.give_back_memory()
    raise OutOfMemoryError(f"out of memory, where {_footprint(case):.1f} GiB were expected to do: {ran_out}")


def _measured(case: Case, measuring: Measuring, checking: Checking, device: Device) -> Walked:
    routine, p = case.routine, case.params
    if device.is_gpu:
        torch.cuda.reset_peak_memory_stats(device.torch)
    x = routine.inputs(p, torch.Generator(device.torch).manual_seed(case.seed), device.torch)
    graph = uses_graph(measuring, device, routine.cuda_graph)
    target, resolved, takes = _built(case, x, graph)
    choice = _settled(case, target)
    cost = routine.cost(p, x)
    expected = Expected(()) if checking.off else _Posed(case, x, cost, checking).expected(takes, device)
    measurement = measure_target(target, expected, measuring, checking, device, cuda_graph=graph)
    if choice and resolved == "auto":
        resolved = choice.backend(routine.backends)
    inputs = tuple(_described(x)) if case.said.verbose > 1 else None
    measurement = replace(measurement, flops=cost.flops, bytes=cost.bytes)
    return Walked(measurement, cost, resolved, choice, routine.facts(p, x), inputs)


def _built(case: Case, x: Any, graph: bool) -> tuple[Target, str, Any]:
    """What to time, the backend that it became, and the inputs in the form in which it takes them."""
    built = case.backend.build(case.params, x, How(case.backend_name, graph))
    takes = x if built.takes is None else built.takes

    def rebuilt() -> Target:
        """On copies of the inputs, with another workspace and plan."""
        return _built(case, cold.clone(x, set()), graph)[0]

    target = Target(built.launch, (takes,), {}, case.routine.outputs(x), case.id, rebuilt, built.plan)
    return target, built.resolved, takes


def _described(tree: Any, name: str = "") -> Iterator[str]:
    if isinstance(tree, torch.Tensor):
        yield f"{name}.shape = {tree.shape}"
        yield f"{name}.dtype = {tree.dtype}"
    for field_name in getattr(tree, "_fields", ()):
        yield from _described(getattr(tree, field_name), f"{name}.{field_name}".lstrip("."))


LOOK_AGAIN = 8  # the second look may take this share of the first one's work


@dataclass(frozen=True)
class _Posed:
    """A case's inputs, and what to compare its answer with."""

    case: Case
    x: Any
    cost: Cost
    checking: Checking

    def expected(self, takes: Any, device: Device) -> Expected:
        """For as many rows as the budget allows; and for fewer of them once the activations are negated."""
        activations, allowed = self.case.routine.activations, sample.budget(device)
        if activations is None:
            return self._answer(allowed)
        less = min(allowed, self.cost.flops) / LOOK_AGAIN
        changes = (changing.of_activations(activations, self.x, takes),)
        return replace(self._answer(allowed), again=partial(self._answer, less), changes=changes)

    def _answer(self, allowed: float) -> Expected:
        routine, p, x, backend = self.case.routine, self.case.params, self.x, self.case.backend_name
        rows = routine.rows(p, x) if routine.rows is not None else None
        part = sample.within(allowed, self.cost.flops, rows, self.case.seed) if rows else None
        answer = routine.reference(p, x, part.chosen) if part else routine.reference(p, x)
        own = tolerances.applied(self.checking.tolerances, routine.name, backend, routine.tolerances(p, backend))
        return Expected(answer, own, partial(routine.decoded, p), part)


def _settled(case: Case, target: Target) -> Choice | None:
    """Which kernel FlashInfer's autotuner has chosen, before anything is timed."""
    if not case.backend.tunes:
        return None
    tune = getattr(case.params, "autotune", False)
    if case.autotune_cache:
        autotune.verify(case.autotune_cache, tune=tune)
    return autotune.settle(target, tune=tune, cache=case.autotune_cache)
