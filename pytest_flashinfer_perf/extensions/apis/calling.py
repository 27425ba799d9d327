"""Call an API: a function itself, or the `run` of a wrapper that is made and planned beforehand.

A first call on copies tells what the library refuses here, which is a skip with the library's sentence, and what a
right call answers and changes. An output that no kernel wrote is found there, too: new memory is marked meanwhile.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from pytest_flashinfer_perf.api import builds, capability, check
from pytest_flashinfer_perf.extensions.apis import call_inputs, registry, samplers, truth
from pytest_flashinfer_perf.extensions.apis.call_inputs import CallInputs, LiveTemplate
from pytest_flashinfer_perf.extensions.apis.templates import Api
from pytest_flashinfer_perf.spec.routine import Built, CannotRunError, LaunchOptions

WORKSPACE_BYTES = 128 << 20


def by_flashinfer(api: Api, inputs: CallInputs, how: LaunchOptions) -> Built[CallInputs]:
    """Call the API once on copies, so that what the library refuses is known before anything is timed."""
    template = call_inputs.live(api)
    chosen = {} if how.backend == registry.ONLY else {"backend": how.backend}
    with _refusals(api, inputs.device):
        function, plan = _function(template, inputs, chosen)
        extra = {name: value for name, value in chosen.items() if name in inspect.signature(function).parameters}
        trial = inputs.copied()
        with _new_memory_marked():
            returned = function(**{**trial.called_with, **extra})
        _finish(inputs.device)
    answers = call_inputs.first_call(inputs, trial, partial(call_inputs.answers, api, trial, returned))
    for name, tensor in answers.items():
        if tensor.numel() and _is_marked(tensor):
            raise check.WrongAnswerError(
                f"output {name}: the call returns it as it was allocated: no kernel here writes it"
            )
    held = _memory_of_answer(function, inputs, answers) if template.owner is not None else {}

    def launch(inputs: CallInputs) -> tuple[torch.Tensor, ...]:
        return tuple(call_inputs.answers(api, inputs, function(**{**inputs.called_with, **extra, **held})).values())

    return Built(launch, how.backend, plan=plan)


@contextmanager
def _new_memory_marked() -> Iterator[None]:
    """Fill memory that torch allocates meanwhile with NaN, or the largest number of an integer type."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _is_marked(tensor: torch.Tensor) -> bool:
    if tensor.dtype == torch.bool:
        return False  # all of it may well be true
    if tensor.is_floating_point() or tensor.is_complex():
        return bool((tensor.float() if tensor.itemsize == 1 else tensor).isnan().all())
    return bool((tensor == torch.iinfo(tensor.dtype).max).all())


def by_reference(api: Api, inputs: CallInputs, how: LaunchOptions) -> Built[CallInputs]:
    """Call the template's reference as a backend of its own; its changed inputs are returned too."""
    answer = samplers.drawn if samplers.is_sampler(api) else truth.returned
    trial = inputs.copied()
    try:
        returned = answer(api, trial)
    except truth.NoReferenceError as error:
        raise CannotRunError(str(error)) from error
    call_inputs.first_call(inputs, trial, partial(truth.named, api, trial, returned))

    def launch(inputs: CallInputs) -> tuple[torch.Tensor, ...]:
        return (*truth.named(api, inputs, answer(api, inputs)).values(), *inputs.changed)

    return Built(launch, how.backend)


def _memory_of_answer(
    function: Callable[..., Any], inputs: CallInputs, answers: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Memory for a wrapper's output, as an engine gives it: without it, one of them fills new memory in every call."""
    takes_it = "out" in inspect.signature(function).parameters and "out" not in inputs.call
    if not takes_it or len(answers) != 1:
        return {}
    [answer] = answers.values()
    return {"out": torch.empty_like(answer)}


def _function(
    template: LiveTemplate, inputs: CallInputs, chosen: dict[str, Any]
) -> tuple[Callable[..., Any], Callable[[], object] | None]:
    """The function to call, and the one that plans it once more; None where nothing is planned."""
    if template.owner is None:
        return template.function, None
    parameters = inspect.signature(template.owner).parameters
    wrapper = template.owner(**dict(_constructed_with(parameters.values(), chosen, inputs.device)))
    method = getattr(wrapper, template.function.__name__)
    if not hasattr(wrapper, "plan"):
        return method, None
    plan = partial(wrapper.plan, **dict(_planned_with(wrapper.plan, inputs.plan)))
    plan()
    return method, plan


def _constructed_with(
    parameters: Iterable[inspect.Parameter], chosen: dict[str, Any], device: torch.device
) -> Iterator[tuple[str, Any]]:
    for parameter in parameters:
        if parameter.name in chosen:
            yield parameter.name, chosen[parameter.name]
        elif parameter.name == "device":
            yield parameter.name, device
        elif parameter.default is parameter.empty and "workspace" in parameter.name:
            yield parameter.name, torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        elif parameter.name == "num_levels":
            yield parameter.name, 1


def _planned_with(plan: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments by their names in `plan`, which may be the template's with a longer or shorter beginning."""
    parameters = inspect.signature(plan).parameters
    if not arguments:
        raise CannotRunError("its template makes no arguments of plan")
    variadic = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name, value in arguments.items():
        alike = [other for other in parameters if _alike(name, other.removesuffix("_arr")) and other not in arguments]
        parameter_name = name if name in parameters or variadic or not alike else alike[0]
        listed = (
            parameter_name in parameters
            and "List" in str(parameters[parameter_name].annotation)
            and isinstance(value, torch.Tensor)
        )
        yield parameter_name, [value] if listed else value


def _alike(name: str, other: str) -> bool:
    return name == other or name.endswith(f"_{other}") or other.endswith(f"_{name}")


def _finish(device: torch.device) -> None:
    """Wait for the device: an error of a kernel is raised here and not by a later call."""
    torch.zeros(1, device=device).item()


@contextmanager
def _refusals(api: Api, device: torch.device) -> Iterator[None]:
    """Errors of the library are refusals, unless the GPU is lost or a module did not compile."""
    try:
        yield
    except (builds.CompileError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        _finish(device)  # raises again if the GPU is lost, which is no refusal
        # A package that is not installed may be the cause: of a missing module, or of None for a function.
        lacks = isinstance(error, ModuleNotFoundError) or (isinstance(error, TypeError) and "NoneType" in str(error))
        absent = ", ".join(capability.packages_not_here()) if lacks else ""
        cause = f" (not installed: {absent})" if absent else ""
        raise CannotRunError(f"{api.path} refuses: {call_inputs.in_a_sentence(error)}{cause}") from error
