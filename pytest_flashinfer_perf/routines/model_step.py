"""The kernels of a model's step as cases: parameters of routines and of FlashInfer's APIs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pytest_flashinfer_perf.models import kernels, shipped
from pytest_flashinfer_perf.models.kernel import Call, Kernel
from pytest_flashinfer_perf.models.step import Step
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.runs.step import ModelStep, StepKernel
from pytest_flashinfer_perf.spec.params import ParamError, Params
from pytest_flashinfer_perf.spec.presets import Model
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape


@dataclass(frozen=True)
class Planned:
    """A kernel, and the problems that measure it: any one of them does its work."""

    kernel: Kernel
    problems: tuple[tuple[AnyRoutine, Params], ...]

    @property
    def recorded(self) -> StepKernel:
        problems = tuple({"routine": routine.name, **params.as_json()} for routine, params in self.problems)
        known = self.kernel
        return StepKernel(
            name=known.name,
            count=known.count,
            problems=problems,
            gap=known.gap,
            note=known.note,
            weight_bytes=known.bytes,
        )


@dataclass(frozen=True)
class Plan:
    name: str
    step: Step
    planned: tuple[Planned, ...]

    @property
    def coverage(self) -> kernels.Coverage:
        return kernels.coverage([one.kernel for one in self.planned])

    @property
    def gaps(self) -> list[Kernel]:
        return [one.kernel for one in self.planned if one.kernel.gap]

    @property
    def title(self) -> str:
        step = self.step
        lengths = "up to " * step.mixed
        return f"{self.name}: one {step.phase} step of {step.batch} requests with {lengths}{step.context} tokens"

    @property
    def recorded(self) -> ModelStep:
        """Without the code of the routines, for the file of a run."""
        return ModelStep(
            name=self.name,
            title=self.title,
            kernels=tuple(one.recorded for one in self.planned),
            coverage=tuple(summary(self)),
        )

    def shapes(self, routine: AnyRoutine) -> list[Shape[Params]]:
        """Each problem once, whichever kernels have it."""
        model = Model(self.name, {})
        problems = (params for one in self.planned for of, params in one.problems if of is routine)
        return [Shape(params, model) for params in dict.fromkeys(problems)]


def plan(text: str, step: Step, apis: Mapping[str, AnyRoutine]) -> Plan:
    """Plan the step of a model: a config.json, its folder, or the name of a shipped model."""
    model = shipped.find(text)
    spread = "".join(f"-{way}{gpus}" for way, gpus in step.spread._asdict().items() if gpus > 1)
    known = {**all_routines(), **apis}
    return Plan(model.name + spread, step, tuple(_planned(kernel, known) for kernel in kernels.of_step(model, step)))


def _planned(kernel: Kernel, known: Mapping[str, AnyRoutine]) -> Planned:
    """A kernel that no routine takes in its size is a gap, with the routine's reason."""
    problems, faults = [], []
    for call in kernel.calls:
        routine = known.get(call.routine)
        try:
            problems.append(_problem(call, routine))
        except ParamError as error:
            faults.append(f"{call.routine}: {error}")
    gap = kernel.gap or ("" if problems else "; ".join(faults))
    return Planned(replace(kernel, gap=gap), tuple(problems))


def _problem(call: Call, routine: AnyRoutine | None) -> tuple[AnyRoutine, Params]:
    """Which APIs there are, and what their sizes are called, depends on the FlashInfer that is installed."""
    if routine is None:
        raise ParamError("the installed FlashInfer has no such API with a trace template")
    strange = set(call.params) - {field.name for field in fields(routine.params)}
    if strange:
        raise ParamError(f"the installed FlashInfer's trace template has no {', '.join(sorted(strange))}")
    return routine, routine.params(**call.params)


def listed(plan: Plan) -> Iterator[str]:
    """A list of the kernels that would be measured."""
    yield plan.title
    for one in plan.planned:
        for routine, params in one.problems:
            yield f"{one.kernel.count:5} x {one.kernel.name:18} {routine.name} {params.slug()}"
    yield from summary(plan)


def summary(plan: Plan) -> Iterator[str]:
    """Which parts of the model have cases, by their share of the weights."""
    covered, every = plan.coverage, [one.kernel for one in plan.planned]
    yield f"{plan.name}: {covered.weights:.1%} of the weights and {covered.flops:.1%} of the operations have a case"
    for reason, names in _by_reason(plan.gaps).items():
        left = kernels.coverage([replace(kernel, gap="" if kernel.gap == reason else "other") for kernel in every])
        share = f"{left.weights:.2%} of the weights, {left.flops:.2%} of the operations"
        yield f"  without a case: {', '.join(names)} ({share}): {reason}"


def _by_reason(gaps: Sequence[Kernel]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kernel in gaps:
        names = found.setdefault(kernel.gap, [])
        names.append(kernel.name)
    return {reason: list(dict.fromkeys(names)) for reason, names in found.items()}
