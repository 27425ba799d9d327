"""The expected answer of an API: its template's reference on copies of the inputs in wider types.

The reference is FlashInfer's own: what it answers is taken as it is, but for outputs that `special_cases.py` excludes.
How an answer is decoded before it is compared, and how far it may be off, follows from the type of each output.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import FlashinferPerfError, check
from pytest_flashinfer_perf.extensions.apis import call_inputs
from pytest_flashinfer_perf.extensions.apis.call_inputs import CallInputs
from pytest_flashinfer_perf.extensions.apis.special_cases import SAME_ANSWER, special
from pytest_flashinfer_perf.extensions.apis.templates import Api
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe._shared import ROUNDED_ON_THE_WAY
from pytest_flashinfer_perf.spec.nested import tensors

NARROW = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
WIDER = {**NARROW, torch.float32: torch.float64}
WIDTHS = {"float64": WIDER, "float32": NARROW}


class NoReferenceError(FlashinferPerfError):
    """The template's reference cannot answer what its own `init` makes."""


def answer(api: Api, inputs: CallInputs, compared: Collection[str] = ()) -> tuple[dict[str, Tensor], str]:
    """The answer by the names of outputs, and the type that it was computed in: `as given` if wider ones are refused.

    To inputs that already hold the answer it makes no difference: `compared` are outputs that it wrote before.
    """
    computed_in = "as given"
    for name in ("float32",) if inputs.device.type == "cuda" else ("float64", "float32"):
        with suppress(NoReferenceError):  # it may insist on the types that it was written for
            written, computed_in = _written(api, inputs, _widened(inputs, WIDTHS[name]), compared), name
            break
    else:
        written = _written(api, inputs, inputs.copied(), compared)
    own = special(api)
    left = {name: tensor for name, tensor in written.items() if name not in own.not_compared}
    if own.not_compared and not left:
        raise NoReferenceError(f"no reference: its template's answers otherwise, {own.why_not_compared}")
    return left, computed_in


def _written(api: Api, inputs: CallInputs, copy: CallInputs, compared: Collection[str]) -> dict[str, Tensor]:
    """The outputs that the reference wrote; those that it left unchanged are not compared."""
    before = dict(call_inputs.flat(call_inputs.written(api, inputs)))
    answered = named(api, copy, returned(api, copy))
    own = {tensor.data_ptr() for tensor in tensors(copy.call)}

    def is_left(name: str, tensor: Tensor) -> bool:
        untouched = name in before and tensor.data_ptr() in own and name not in compared
        return untouched and torch.equal(tensor.to(before[name].dtype), before[name])

    return {name: tensor for name, tensor in answered.items() if not is_left(name, tensor)}


def returned(api: Api, inputs: CallInputs) -> Any:
    """What the reference returns for these inputs themselves, some of which it may change."""
    reference = call_inputs.live(api).trace.reference
    try:
        return reference(**dict(_bound(api, inputs, reference)))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NoReferenceError(f"no reference: its template's fails, {call_inputs.in_a_sentence(error)}") from error


def named(api: Api, inputs: CallInputs, returned: Any) -> dict[str, Tensor]:
    """The reference's outputs by name: what it wrote to these inputs, and what it returned."""
    if isinstance(returned, dict):
        by_name = {name: value for name, value in returned.items() if isinstance(value, Tensor)}
    else:
        by_name = call_inputs.answers(api, CallInputs({}, {}), returned)
    return {**dict(call_inputs.flat(call_inputs.written(api, inputs))), **by_name}


def _widened(inputs: CallInputs, types: dict[torch.dtype, torch.dtype]) -> CallInputs:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.to(types[tensor.dtype]) if tensor.dtype in types else tensor.clone()

    return CallInputs(_mapped(wide, inputs.call), _mapped(wide, inputs.plan), inputs.shared)


def _mapped(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, dict):
        return {key: _mapped(change, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(change, value) for value in tree)
    return tree


def _bound(api: Api, inputs: CallInputs, reference: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The reference's arguments: by the template's names, by the API's, by those of `plan` that end alike."""
    everything = inputs.all
    by_template = dict(_by_template(api, everything))
    parameters = inspect.signature(reference).parameters
    unknown = inputs.shared.requested - set(parameters) - SAME_ANSWER
    if unknown:
        raise NoReferenceError(f"no reference: its template's does not know of {', '.join(sorted(unknown))}")
    for name, parameter in parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from (
                (key, value) for key, value in everything.items() if key not in parameters and key not in by_template
            )
        elif name in by_template or name in everything:
            yield name, by_template.get(name, everything.get(name))
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


# Decode an API's output so that equal answers compare equal: packed numbers, sets in any order, scales.

# A value half way between two e2m1 codes may be rounded to either, as up to 3 % of them may be. Neighbouring codes
# above zero differ by at most half of the larger one.
PACKED = check.Tolerance(0.34, 0.6, 0.02, matched=0.97)
NARROW_TYPES = {
    dtype: replace(check.BY_DTYPE[dtype], matched=0.995)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)  # whose values are further apart than these bounds
}
HALF = (torch.bfloat16, torch.float16)
EXPONENTS = check.Tolerance(0.0, 0.0, 0.02, matched=0.97, absolute=1.0)  # scales that are powers of two: one step off


def is_packed(api: Api, name: str, dtype: torch.dtype) -> bool:
    """Whether it holds two e2m1 numbers in each byte."""
    output = next((one for one in api.outputs if one.name == name.partition("[")[0]), None)
    last = output.dims[-1] if output and output.dims else ""
    return dtype == torch.uint8 and ("packed" in last or "div_2" in last)


def meant(api: Api, name: str, tensor: Tensor, arguments: Mapping[str, Any], undecided: Tensor | None = None) -> Tensor:
    """The numbers to compare: unpacked ones, or those that indices choose; zeros for elements that are undecided."""
    if is_packed(api, name, tensor.dtype):
        return _narrow.from_e2m1(_narrow.unpacked(tensor))
    if "top" in api.label and "indices" in name and not tensor.dtype.is_floating_point:  # in any order
        return _numbers_at(tensor, arguments.values()).sort(-1).values
    if name in special(api).unordered:
        return tensor.sort(-1).values
    if undecided is None or undecided.shape != tensor.shape:
        return tensor
    return tensor.masked_fill(undecided, 0)


def _numbers_at(indices: Tensor, arguments: Iterable[Any]) -> Tensor:
    """The numbers that these indices choose from their rows, since equal numbers may be chosen in any order.

    The rows are the first argument of a fitting shape. Index -1 chooses nothing: less than any number stands for it.
    """
    for rows in tensors(tuple(arguments)):
        if rows.is_floating_point() and rows.shape[:-1] == indices.shape[:-1] and indices.max() < rows.shape[-1]:
            chosen = rows.float().gather(-1, indices.clamp(min=0).long())
            return chosen.where(indices >= 0, rows.min() - 1)
    return indices


def tolerance(api: Api, name: str, dtype: torch.dtype) -> check.Tolerance:
    """The tolerance for the output's type, or for what is rounded on the way to it."""
    # The kernel of experts with narrow weights rounds what is between its two products, by scales that it finds.
    if api.operation == "moe" and dtype in HALF and any("scale" in one.name for one in api.inputs):
        return ROUNDED_ON_THE_WAY
    if is_packed(api, name, dtype):
        return PACKED
    if dtype == torch.uint8 and "quant" in f"{api.operation} {api.label}":
        return EXPONENTS
    return {**check.BY_DTYPE, **NARROW_TYPES}.get(dtype, check.EXACT)
