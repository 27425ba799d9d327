"""Whether the tensors of a recorded call are those of the case that would measure it, in type and layout.

A template draws its inputs as it likes: it is asked for small ones. What cannot be asked, as without a GPU, is held to
the types that the template declares.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pytest_flashinfer_perf.extensions.apis.templates import Api, Declared
from pytest_flashinfer_perf.extensions.traffic.problem import CallArguments, NoCaseError, tensors_in
from pytest_flashinfer_perf.spec.dtypes import TORCH

Tensor = Mapping[str, Any]  # as a recording describes one


def verify(x: CallArguments, api: Api, dtype: str | None) -> None:
    """Raises NoCaseError where the template has another type or layout than was recorded."""
    for one in api.inputs:
        for recorded, drawn in zip(tensors_in(x.all.get(one.argument)), _drawn(api, one, dtype), strict=False):
            if recorded["dtype"] != drawn["dtype"]:
                raise NoCaseError(f"{one.argument} is {recorded['dtype']}, and {drawn['dtype']} in its trace template")
            if not _is_laid_out_alike(recorded, drawn):
                raise NoCaseError(f"{one.argument} has another layout in memory than in its trace template")


def _drawn(api: Api, one: Declared, dtype: str | None) -> list[Tensor]:
    inputs = _inputs(api, dtype)
    if inputs is not None:
        return list(tensors_in(inputs.get(one.argument)))
    default = str(TORCH[dtype or "bfloat16"]).removeprefix("torch.")
    return [{"tensor": [], "dtype": one.dtype or default}] if one.dims else []


@functools.cache
def _inputs(api: Api, dtype: str | None) -> Mapping[str, Any] | None:
    """The inputs of the smallest case, as a recording describes them."""
    import torch

    from pytest_flashinfer_perf.extensions.apis import call_inputs
    from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
    from pytest_flashinfer_perf.extensions.traffic import arguments
    from pytest_flashinfer_perf.spec import CannotRunError

    shape = next(iter(all_apis()[api.name].tiers["smoke"]()))
    params = type(shape.params)(**{**shape.params.as_dict(), "dtype": dtype})
    try:
        return arguments.described(torch, call_inputs.make(api, params, "cpu", 0).all, {})
    except CannotRunError:
        return None


def _is_laid_out_alike(one: Tensor, other: Tensor) -> bool:
    """Whether both are contiguous, or neither is."""
    return not other["tensor"] or ("strides" in one) == ("strides" in other)
