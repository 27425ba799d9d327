"""Run one case: capability, memory, inputs, build, check, measure, check again."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.engine import autotune, cold, graphs, verification
from pytest_flashinfer_perf.engine.autotune import Choice
from pytest_flashinfer_perf.engine.measure import Measurement, TimeCalls, alone, case_clock, measure_target
from pytest_flashinfer_perf.engine.stopping import CaseClock
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.engine.timing import uses_graph
from pytest_flashinfer_perf.engine.verification import Expected
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine import builds, capability, device_errors, garbage
from pytest_flashinfer_perf.machine.builds import CompileError
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.nested import named_tensors
from pytest_flashinfer_perf.spec.routine import CannotRunError, Cost, LaunchOptions

# What a CPU makes and multiplies in seconds: 128 MiB beside attention's workspace, and a call that a check could take.
STAND_IN_BYTES = 640 << 20
STAND_IN_FLOPS = check.BUDGET_CPU


class OutOfMemoryError(FlashinferPerfError):
    """Out of memory, although the case was estimated to fit."""

    outcome = device_errors.OUT_OF_MEMORY


@dataclass(frozen=True)
class CaseResult:
    measurement: Measurement
    cost: Cost
    resolved: str
    choice: Choice | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] | None = None


def obstacle(case: Case, device: Device, most_gib: float | None = None) -> str | None:
    """Why this case cannot run here, None if it can; the reason to fix first comes first."""
    return refusal(case, device) or _too_large(case, device, most_gib)


def refusal(case: Case, device: Device) -> str | None:
    """Why it cannot run here however much memory is free."""
    reason = capability.missing(case.backend.requires, device)
    if reason is None:
        reason = next(iter(case.backend.limits(case.params, case.backend_name, device)), None)
    return reason or _untunable(case) or _too_long(case, device)


def _untunable(case: Case) -> str | None:
    if not case.autotunes or case.backend.tunes or (case.options.autotune and case.backend.api):
        return None
    return f"{case.backend_name} has nothing to autotune: leave out --autotune"


def _too_long(case: Case, device: Device, flops: float = 0) -> str | None:
    """Why a stand-in is not measured: a GPU is there, or a CPU would take long to make its inputs or for its calls."""
    if not case.stands_in:
        return None
    name = case.backend_name
    if device.is_gpu:
        return f"{name} stands in where there is no GPU: --backends {name} measures it here"
    size = case.routine.footprint(case.params) / STAND_IN_BYTES
    if max(size, flops / STAND_IN_FLOPS) <= 1:
        return None
    needs = f"{flops / 1e9:.3g} GFLOP" if size <= 1 else f"about {_footprint(case):.1f} GiB"
    return f"{name} stands in for small cases only, this one needs {needs}: --backends {name} measures it"


def _too_large(case: Case, device: Device, most_gib: float | None) -> str | None:
    needed = _footprint(case)
    if most_gib is not None and needed > most_gib:
        return f"needs more than the {most_gib:g} GiB of --perf-max-memory"
    if needed > device.free_bytes() / 2**30:
        device.give_back_memory()
    free = device.free_bytes() / 2**30
    return f"needs about {needed:.1f} GiB, {free:.1f} GiB are free on {device.torch}" if needed > free else None


def _footprint(case: Case) -> float:
    """The estimated memory in GiB."""
    return case.routine.footprint(case.params) / 2**30


def run_case(  # noqa: PLR0913 - one argument per part of a measurement
    case: Case,
    measuring: Measuring,
    checking: Checking,
    device: Device,
    most_gib: float | None = None,
    *,
    time_calls: TimeCalls = alone,
) -> CaseResult:
    """Check a case and measure it; raises CannotRunError, WrongAnswerError or OutOfMemoryError."""
    # Can it run here?
    reason = obstacle(case, device, most_gib)
    if reason:
        raise CannotRunError(reason)

    # Build, check, time.
    builds.watch()
    if device.is_gpu:
        garbage.freeze_imports()
    try:
        with case_clock() as clock, device.threads(measuring.cpu_threads):
            return _measure(case, measuring, checking, device, time_calls=time_calls, clock=clock)
    except CompileError:
        raise
    except (RuntimeError, MemoryError) as error:
        if device_errors.name_of(error) != device_errors.OUT_OF_MEMORY:
            raise
        ran_out = str(error).partition("\n")[0]
        traceback.clear_frames(error.__traceback__)  # they hold tensors
    finally:
        if device.is_gpu:  # on a CPU only when memory is short: collecting garbage takes longer than a small case
            device.give_back_memory()

    # Out of memory: what the case held goes first, or the next one has none.
    device.give_back_memory()
    raise OutOfMemoryError(f"out of memory, where {_footprint(case):.1f} GiB were estimated: {ran_out}")


def _measure(  # noqa: PLR0913 - one argument per part of a measurement
    case: Case, measuring: Measuring, checking: Checking, device: Device, *, time_calls: TimeCalls, clock: CaseClock
) -> CaseResult:
    # Build inputs, the call, and the answer to expect.
    if device.is_gpu:
        torch.cuda.reset_peak_memory_stats(device.torch)
    prepared = prepare(case, measuring, checking, device, tuning=clock.halted)

    # Check, time, and check again.
    measurement = measure_target(
        prepared.target,
        prepared.expected,
        measuring,
        checking,
        device,
        cuda_graph=prepared.cuda_graph,
        time_calls=time_calls,
        clock=clock,
    )

    # Describe what was chosen, and the inputs.
    choice, resolved = prepared.choice, prepared.resolved
    if choice and resolved == "auto":
        resolved = choice.backend(case.routine.backends)
    inputs = tuple(_described(prepared.x)) if case.options.verbose > 1 else None
    measurement = replace(measurement, flops=prepared.cost.flops, bytes=prepared.cost.bytes)
    facts = case.routine.described(case.params, prepared.x, prepared.expected.tolerances)
    return CaseResult(measurement, prepared.cost, resolved, choice, facts, inputs)


@dataclass(frozen=True)
class PreparedCase:
    """A case that is built and not timed: its inputs and call, the answer to expect, and the tuner's choice, if any."""

    x: Any
    target: Target
    resolved: str
    cuda_graph: bool
    choice: Choice | None
    cost: Cost
    expected: Expected


def prepare(
    case: Case,
    measuring: Measuring,
    checking: Checking,
    device: Device,
    *,
    tuning: Callable[[], AbstractContextManager[None]] | None = nullcontext,
) -> PreparedCase:
    """Build a case, let the tuner choose within `tuning`, if at all, and compute the answer to expect."""
    # Inputs and the call.
    routine, p = case.routine, case.params
    x = routine.inputs(p, torch.Generator(device.torch).manual_seed(case.seed), device.torch)
    graph = uses_graph(measuring, device, routine.cuda_graph)
    target, resolved, takes = _build(case, x, graph)
    graph = graph and not (routine.graph_if_possible and graphs.refusal(target))

    # The tuner chooses before anything is timed.
    choice = None
    if tuning is not None:
        with tuning():
            choice = _tune(case, target)

    # The work, and the answer to expect.
    cost = routine.cost(p, x)
    if too_long := _too_long(case, device, cost.flops):
        raise CannotRunError(too_long)
    expected = Expected(()) if checking.off else _Expectation(case, x, cost, checking).expected(takes, device)
    return PreparedCase(x, target, resolved, graph, choice, cost, expected)


def _build(case: Case, x: Any, graph: bool) -> tuple[Target, str, Any]:
    """The call to time, the backend that it resolved to, and the inputs as that backend expects them."""
    built = case.backend.build(case.params, x, LaunchOptions(case.backend_name, graph))
    takes = x if built.takes is None else built.takes

    def rebuilt() -> Target:
        """Build it again, on copies of the inputs and with another workspace and plan."""
        return _build(case, cold.clone(x, set()), graph)[0]

    target = Target(
        built.launch,
        (takes,),
        outputs=case.routine.outputs(x),
        name=case.id,
        rebuilt=rebuilt,
        plan=built.plan,
        changed=lambda arguments: case.routine.changed(arguments[0]),
    )
    return target, built.resolved, takes


def _described(inputs: Any) -> Iterator[str]:
    for name, tensor in named_tensors(inputs):
        yield f"{name}.shape = {tensor.shape}"
        yield f"{name}.dtype = {tensor.dtype}"


SECOND_CHECK = 8  # the second check gets this fraction of the first one's work


@dataclass(frozen=True)
class _Expectation:
    """A case's inputs, from which the answer to compare with is computed."""

    case: Case
    x: Any
    cost: Cost
    checking: Checking

    def expected(self, takes: Any, device: Device) -> Expected:
        """The reference for as many rows as the budget allows, and for fewer once the activations are negated."""
        activations, allowed = self.case.routine.activations, check.budget(on_gpu=device.is_gpu)
        if activations is None:
            return self._answer(allowed)
        less = min(allowed, self.cost.flops) / SECOND_CHECK
        changes = (verification.negated_activations(activations, self.x, takes),)
        return replace(self._answer(allowed), recompute=partial(self._answer, less), changes=changes)

    def _answer(self, allowed: float) -> Expected:
        routine, p, x, backend = self.case.routine, self.case.params, self.x, self.case.backend_name
        rows = routine.rows(p, x) if routine.rows is not None else None
        part = check.within(allowed, self.cost.flops, rows, self.case.seed) if rows else None
        answer = routine.reference(p, x, part.chosen) if part else routine.reference(p, x)
        own = project_file.applied(self.checking.tolerances, routine.name, backend, routine.allowed(p, x, backend))
        return Expected(answer, own, partial(routine.read, p, x), part)


def _tune(case: Case, target: Target) -> Choice | None:
    """Let FlashInfer's autotuner choose the kernel before anything is timed, and return its choice."""
    if not (case.backend.tunes or case.options.autotune):
        return None
    if case.autotune_cache:
        autotune.verify(case.autotune_cache, tune=case.autotunes)
    return autotune.choose_kernel(target, tune=case.autotunes, cache=case.autotune_cache)
