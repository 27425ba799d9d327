"""The expected answer of an API: its template's reference on copies of the inputs in wider types."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.apis import exceptions
from pytest_flashinfer_perf.apis import given as made
from pytest_flashinfer_perf.apis.given import Given
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.timing import cold

NARROW = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
WIDER = {**NARROW, torch.float32: torch.float64}
WIDTHS = {"float64": WIDER, "float32": NARROW}


SAME_ANSWER = {"enable_pdl"}  # arguments that change how, not what


class NoReferenceError(FlashinferPerfError):
    """The template's reference cannot answer what its own `init` makes."""


def answer(api: Api, given: Given, device: torch.device) -> tuple[dict[str, Tensor], str]:
    """By the names of outputs, and what it was computed in."""
    known, computed_in = _computed(api, given, device)
    _, why = exceptions.by_part(exceptions.OTHERWISE, api.label) or ((), "")
    if why and not known:
        raise NoReferenceError(f"no reference: its template's answers otherwise, {why}")
    return known, computed_in


def _computed(api: Api, given: Given, device: torch.device) -> tuple[dict[str, Tensor], str]:
    """`as given` where wider inputs are refused."""
    for name in ("float32",) if device.type == "cuda" else ("float64", "float32"):
        with suppress(NoReferenceError):  # it may insist on the types that it was written for
            return _known(api, given, _widened(given, WIDTHS[name])), name
    return _known(api, given, cold.clone(given, set())), "as given"


def _known(api: Api, given: Given, wide: Given) -> dict[str, Tensor]:
    """The outputs that the reference wrote; those that it left unchanged are not compared.

    To inputs that already hold the answer it makes no difference: what it was seen to write once, it writes.
    """
    before = dict(made.flat(made.written(api, given)))
    named = call(api, wide)
    own = {tensor.data_ptr() for tensor in tensors(wide.call)}
    untouched = (name for name, tensor in named.items() if name in before and tensor.data_ptr() in own)
    left = {name for name in untouched if torch.equal(named[name].to(before[name].dtype), before[name])}
    given.kept.written |= named.keys() - left
    otherwise, _ = exceptions.by_part(exceptions.OTHERWISE, api.label) or ((), "")
    return {name: tensor for name, tensor in named.items() if name in given.kept.written and name not in otherwise}


def call(api: Api, given: Given) -> dict[str, Tensor]:
    """The reference on these inputs themselves, some of which it may change."""
    reference = made.live(api).trace.reference
    try:
        returned = reference(**dict(_bound(api, given, reference)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NoReferenceError(f"no reference: its template's fails, {made.in_a_sentence(error)}") from error
    if isinstance(returned, dict):
        named = {name: value for name, value in returned.items() if isinstance(value, Tensor)}
    else:
        named = made.answers(api, Given({}, {}), returned)
    return {**dict(made.flat(made.written(api, given))), **named}


def _widened(given: Given, types: dict[torch.dtype, torch.dtype]) -> Given:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.to(types[tensor.dtype]) if tensor.dtype in types else tensor.clone()

    return Given(_mapped(wide, given.call), _mapped(wide, given.plan), given.kept)


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _mapped(change, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(change, value) for value in tree)
    return tree


def _bound(api: Api, given: Given, reference: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The reference's arguments: by the template's names, by the API's, by those of `plan` that end alike."""
    everything = given.all
    named = dict(_by_template(api, everything))
    parameters = inspect.signature(reference).parameters
    strange = given.kept.arguments - set(parameters) - SAME_ANSWER
    if strange:
        raise NoReferenceError(f"no reference: its template's does not know of {', '.join(sorted(strange))}")
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from ((key, value) for key, value in everything.items() if key not in parameters and key not in named)
        elif name in named or name in everything:
            yield name, named.get(name, everything.get(name))
        elif parameter.default is parameter.empty:
            yield name, _alike(name, everything)


def _by_template(api: Api, everything: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for one in api.inputs:
        if one.argument in everything:
            value = everything[one.argument]
            picked = one.element is not None and isinstance(value, (tuple, list))
            yield one.name, value[one.element] if picked else value


def _alike(name: str, everything: dict[str, Any]) -> Any:
    close = [key for key in everything if key.endswith(name) or name.endswith(f"_{key}")]
    if close:
        return everything[close[0]]
    if name in ("scale", "sm_scale"):  # what the API takes by default
        queries = next(tensor for tensor in tensors(list(everything.values())) if tensor.is_floating_point())
        return 1.0 / math.sqrt(queries.shape[-1])
    return None
