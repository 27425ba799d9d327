"""The plan of a step: which kernels it has, which problems measure them, and which parts of the model have none.

`of` makes a plan from the config alone, in a moment, without torch or FlashInfer. The session that measures it
completes it by the routines and APIs that are installed there, and stores it in the file of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, replace

from pytest_flashinfer_perf.extensions.models import kernels, shipped
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.models.kernels import Problem
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Model, UnevenError
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape


def of(text: str, step: Step) -> StepPlan:
    """Plan the step of a model: a config.json, its folder, or the name of a shipped model."""
    model = shipped.find(text)
    name = model.name + step.spread.suffix
    try:
        step_kernels = tuple(kernels.of_step(model, step))
    except UnevenError as error:
        raise UnevenError(f"{model.name} has {error}") from error
    return _covered(StepPlan(name=name, title=f"{name}: {step.title}", kernels=step_kernels))


def shapes(plan: StepPlan, routine: AnyRoutine) -> list[Shape[Params]]:
    """The shapes of this routine in the plan, each once, whichever kernels have it."""
    problems: dict[Params, None] = {}
    for kernel in plan.kernels:
        for one in kernel.problems:
            if one["routine"] == routine.name:
                with suppress(ParamError):
                    problems[_params(one, routine)] = None
    return [Shape(params, Model(plan.name, {})) for params in problems]


def completed(plan: StepPlan, routines: Mapping[str, AnyRoutine]) -> StepPlan:
    """The plan with every parameter of each problem; a kernel that no routine here takes in its size is a gap."""
    return _covered(replace(plan, kernels=tuple(_completed(kernel, plan, routines) for kernel in plan.kernels)))


def _completed(kernel: StepKernel, plan: StepPlan, routines: Mapping[str, AnyRoutine]) -> StepKernel:
    problems, cases, faults = [], [], []
    for one in kernel.problems:
        name = one["routine"]
        try:
            params = _params(one, routines.get(name))
        except ParamError as error:
            faults.append(f"{name}: {error}")
            continue
        problems.append({"routine": name, **params.as_json()})
        cases.append(f"{name}/{Shape(params, Model(plan.name, {})).id}")
    gap = kernel.gap or ("" if problems else "; ".join(faults))
    return replace(kernel, problems=tuple(problems), cases=tuple(cases), gap=gap)


def within(plan: StepPlan, gpus: int) -> StepPlan:
    """The plan on a machine with so many GPUs: a kernel between more of them is a gap."""
    return _covered(replace(plan, kernels=tuple(_within(kernel, gpus) for kernel in plan.kernels)))


def _within(kernel: StepKernel, gpus: int) -> StepKernel:
    needs = min((one.get("num_gpus", 1) for one in kernel.problems), default=1)
    if needs <= gpus:
        return kernel
    return replace(kernel, problems=(), cases=(), gap=f"needs {needs} GPUs of one machine, {gpus} can be seen")


def _params(one: Problem, routine: AnyRoutine | None) -> Params:
    """Make a routine's Params of a problem, if the installed FlashInfer has such an API with these sizes."""
    if routine is None:
        raise ParamError("the installed FlashInfer has no such API with a trace template")
    values = {name: value for name, value in one.items() if name != "routine"}
    unknown_sizes = set(values) - {field.name for field in fields(routine.params)}
    if unknown_sizes:
        raise ParamError(f"the installed FlashInfer's trace template has no {', '.join(sorted(unknown_sizes))}")
    params: Params = routine.params(**values)
    return params


def listed(plan: StepPlan) -> Iterator[str]:
    """The kernels that would be measured, each with the flags of its cases."""
    yield plan.title
    for kernel in plan.kernels:
        for one in kernel.problems:
            values = {name: value for name, value in one.items() if name != "routine" and value not in (None, False)}
            flags = (f"--{name}" if value is True else f"--{name} {value}" for name, value in values.items())
            yield f"{kernel.count:5} x {kernel.name:18} {one['routine']} {' '.join(flags)}"
    yield from plan.coverage


def _covered(plan: StepPlan) -> StepPlan:
    """Add a line on the weights that have a case, and one for each reason why a part of the model has none."""
    lines = [f"{plan.name}: {kernels.covered(plan.kernels):.1%} of the weights have a case"]
    for reason in dict.fromkeys(one.gap for one in plan.gaps):
        names = dict.fromkeys(one.name for one in plan.gaps if one.gap == reason)
        left = kernels.covered([replace(one, gap="" if one.gap == reason else "other") for one in plan.kernels])
        lines.append(f"  without a case: {', '.join(names)} ({left:.2%} of the weights): {reason}")
    return replace(plan, coverage=tuple(lines))
