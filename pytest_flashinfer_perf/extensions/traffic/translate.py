"""A recorded call as a problem that a case measures.

`routine_calls.py` has the calls that routines of the suite make; all others are matched with the trace template of
their API, whose axes the shapes of the recorded tensors tell. What neither knows is a NoCaseError that says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_flashinfer_perf.extensions.apis import special_cases
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.apis.shapes import FLOATS
from pytest_flashinfer_perf.extensions.apis.templates import Api, Declared
from pytest_flashinfer_perf.extensions.traffic import forms
from pytest_flashinfer_perf.extensions.traffic.problem import (
    CallArguments,
    Effort,
    NoCaseError,
    PosedProblem,
    posed,
    tensors_in,
)
from pytest_flashinfer_perf.extensions.traffic.routine_calls import ROUTINES
from pytest_flashinfer_perf.spec.dtypes import OURS

NOT_OF_A_CASE = ("backend", "seed", "offset", "generator")  # arguments that a case gives itself
TOUCHED = ("nnz_kv", "nnz", "num_tokens", "batch_size")
ENOUGH_PAGES = 1024


def problem(x: CallArguments) -> PosedProblem:
    """The problem by which a call is measured; raises NoCaseError."""
    try:
        return _problem(x, short(x.api))
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:  # a recording may be anybody's
        raise NoCaseError(f"its arguments do not have the form that this API's have: {error}") from error


def _problem(x: CallArguments, name: str) -> PosedProblem:
    if name in ROUTINES:
        return ROUTINES[name](x)
    templates = [routine.api for routine in all_apis().values() if short(routine.api.path) == name]
    if not templates:
        raise NoCaseError("no routine calls it, and it has no trace template")
    # The one whose inputs the call was given, less those that it was not.
    return _by_template(x, max(templates, key=lambda api: sum(1 if i.argument in x.all else -1 for i in api.inputs)))


def short(api: str) -> str:
    """The name, with the class of a method: releases move a function to another module."""
    owner, _, name = api.rpartition(".")
    last = owner.rpartition(".")[2]
    return f"{last}.{name}" if last[:1].isupper() else name


def _by_template(x: CallArguments, api: Api) -> PosedProblem:
    """Pose the problem by axes from shapes and from arguments; the others keep the template's default."""
    from_shapes = _axes(x, api)
    own = {axis.name: x.value(axis.name) for axis in api.axes if x.value(axis.name) is not None}
    axes = {axis.name: value for axis in api.axes if (value := {**own, **from_shapes}.get(axis.name)) is not None}
    lacking = [axis.name for axis in api.axes if axis.default is None and axis.name not in axes]
    if lacking:
        raise NoCaseError(f"the recorded shapes do not tell the axis {lacking[0]} of its trace template")
    if "num_pages" in axes:  # of a server's whole cache, of which a call touches no more than a page for each token
        touched = sum(axes[name] for name in axes if name in TOUCHED)
        axes["num_pages"] = min(axes["num_pages"], max(ENOUGH_PAGES, touched))
    further = ",".join(f"{name}={value}" for name, value in _further(x, api, set(axes)))
    params = {**axes, "dtype": _dtype(x, api), "arguments": further or None}
    translated = posed(x, api.name, params, Effort(x.nbytes))
    forms.verify(x, api, params["dtype"])
    return translated


def _axes(x: CallArguments, api: Api) -> dict[str, int]:
    """Raises NoCaseError where a shape is another one than is described, and no other input has its axes."""
    sizes: dict[str, int] = {}
    shapes = [(one, _shape(x, api, one)) for one in api.inputs]
    for one, shape in shapes:
        for name, size in zip(one.dims, shape or (), strict=False):
            axis = name.removesuffix(special_cases.ONE_MORE)
            number = size - (axis != name)
            if sizes.setdefault(axis, number) != number:
                raise NoCaseError(f"{one.argument} does not have the shape that its trace template describes")
    unknown = {axis.name for axis in api.axes} - sizes.keys()
    for one, shape in shapes:
        if shape is None and unknown.intersection(one.dims):
            raise NoCaseError(f"{one.argument} has other dimensions than its trace template, {', '.join(one.dims)}")
    return sizes


def _shape(x: CallArguments, api: Api, one: Declared) -> tuple[int, ...] | None:
    """As the template has it: of a tuple the element it means, of a cache with keys and values in one the keys; None
    for what has other dimensions.
    """
    value = x.all.get(one.argument)
    tensors = list(tensors_in(value))
    if not tensors or not one.dims or not all(tensors[0]["tensor"]):
        return ()
    nth = one.element or 0
    shape = tuple(tensors[nth if nth < len(tensors) else 0]["tensor"])
    if len(shape) == len(one.dims) + 1 and shape[1] == 2:
        return shape[:1] + shape[2:]
    heads = any(axis.name == "num_heads" for axis in api.axes) and "num_heads" not in one.dims
    if len(shape) == len(one.dims) + 1 and heads:  # norms of heads
        x.all.setdefault("num_heads", shape[1])
        return shape[:1] + shape[2:]
    return shape if len(shape) == len(one.dims) else None


def _dtype(x: CallArguments, api: Api) -> str | None:
    """The type of the first input, where its template does not declare the same."""
    for one in api.inputs:
        for tensor in tensors_in(x.all.get(one.argument)):
            dtype = OURS.get(tensor["dtype"], tensor["dtype"])
            return dtype if dtype in FLOATS and dtype != (one.dtype or "bfloat16") else None
    return None


def _further(x: CallArguments, api: Api, inputs: set[str]) -> Iterator[tuple[str, Any]]:
    for name, value in x.call.items():
        is_of_case = name in api.arguments and name not in inputs and name not in NOT_OF_A_CASE
        if is_of_case and isinstance(value, (bool, int, float, str)):
            yield name, value
    if special_cases.DRAWN_FROM.keys() <= {*api.arguments}:
        yield from special_cases.DRAWN_FROM.items()
