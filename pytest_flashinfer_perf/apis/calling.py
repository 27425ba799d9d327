"""An API as a call to time: the function itself, or the method of a wrapper that was made and planned before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pytest_flashinfer_perf.apis import given as made
from pytest_flashinfer_perf.apis import registry, sampling, truth
from pytest_flashinfer_perf.apis.given import Given, Template
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.running.compiling import CompileError
from pytest_flashinfer_perf.spec.routine import Built, CannotRunError, LaunchOptions
from pytest_flashinfer_perf.timing import cold

WORKSPACE_BYTES = 128 << 20
Launch = Callable[[Given], tuple[torch.Tensor, ...]]


def by_flashinfer(api: Api, given: Given, how: LaunchOptions) -> Built[Given]:
    """Called once on copies: what the library refuses, it refuses now."""
    template = made.live(api)
    chosen = {} if how.backend == registry.ONLY else {"backend": how.backend}
    device = made.device_of(given)
    with _refusals(api, device):
        function = _function(template, given, chosen, device)
        extra = {name: value for name, value in chosen.items() if name in inspect.signature(function).parameters}
        launch = _launch(api, function, extra)
        trial = cold.clone(given, set())
        returned = function(**{**trial.called_with, **extra})
        _settle(device)
    made.note_changes(given, trial)
    given.kept.dtypes = _dtypes(made.answers(api, trial, returned))
    return Built(launch, how.backend)


def by_reference(api: Api, given: Given, how: LaunchOptions) -> Built[Given]:
    answer = sampling.drawn if sampling.is_sampler(api) else truth.call
    trial = cold.clone(given, set())
    try:
        answer(api, trial)
    except truth.NoReferenceError as error:
        raise CannotRunError(str(error)) from error
    made.note_changes(given, trial)
    given.kept.dtypes = _dtypes(answer(api, trial))
    return Built(lambda given: (*answer(api, given).values(), *made.changed(given)), how.backend)


def _launch(api: Api, function: Callable[..., Any], extra: dict[str, Any]) -> Launch:
    return lambda given: tuple(made.answers(api, given, function(**{**given.called_with, **extra})).values())


def _dtypes(named: dict[str, torch.Tensor]) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in named.items()}


def _function(template: Template, given: Given, chosen: dict[str, Any], device: torch.device) -> Callable[..., Any]:
    if template.owner is None:
        return template.function
    known = inspect.signature(template.owner).parameters
    wrapper = template.owner(**dict(_constructed_with(list(known.values()), chosen, device)))
    if given.plan:
        wrapper.plan(**given.plan)
    method: Callable[..., Any] = getattr(wrapper, template.function.__name__)
    return method


def _constructed_with(
    parameters: list[inspect.Parameter], chosen: dict[str, Any], device: torch.device
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


def _settle(device: torch.device) -> None:
    torch.zeros(1, device=device).item()


@contextmanager
def _refusals(api: Api, device: torch.device) -> Iterator[None]:
    """What the library raises is its refusal, unless the GPU is lost or something did not compile."""
    try:
        yield
    except (CompileError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        _settle(device)  # an error of CUDA stays, and is no refusal
        raise CannotRunError(f"{api.path} refuses: {made.in_a_sentence(error)}") from error
