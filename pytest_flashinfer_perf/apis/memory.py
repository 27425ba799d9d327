"""Estimate the memory that a case of an API needs, before any is allocated."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from pytest_flashinfer_perf.apis import given
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.apis.shapes import ApiParams
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.routine import CannotRunError

# The inputs, copies of them in wider types, and what the reference makes on its way.
TIMES = 8


def footprint(api: Api, params: ApiParams) -> int:
    return TIMES * _inputs(api, params)


@functools.cache
def _inputs(api: Api, params: ApiParams) -> int:
    """By making them where nothing is stored; by what the template declares where its `init` looks at values."""
    try:
        made = given.make(api, params, "meta", 0)
        return sum(tensor.nbytes for tensor in tensors(made.all))
    except CannotRunError:
        return sum(_declared(one.dims, params.axes) for one in (*api.inputs, *api.outputs))


def _declared(dims: tuple[str, ...], axes: Mapping[str, Any]) -> int:
    """Bytes at four for each element: of the known axes, or of the longest one if none of these is known."""
    sizes = {name: int(size) for name, size in axes.items() if isinstance(size, (int, float))}
    longest = max(sizes.values(), default=1)
    stated = [sizes[name] for name in dims if name in sizes]
    return 4 * math.prod(stated or [longest]) if dims else 0
