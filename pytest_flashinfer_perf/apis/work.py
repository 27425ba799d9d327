"""The bytes and FLOPs of an API's call, from its template's declarations and its reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pytest_flashinfer_perf.apis.given import Given
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.spec import dtypes
from pytest_flashinfer_perf.spec.cost import Cost
from pytest_flashinfer_perf.spec.nested import tensors

# The first axis of what is read through indices, and the axes of the indices that say which of it.
GATHERED = {"num_pages": ("num_kv_indices", "max_pages_per_seq"), "max_seq_len": ("nnz",), "vocab": ("num_tokens",)}


def counted(run: Callable[[], object]) -> int:
    """How many FLOPs its products take."""
    with FlopCounterMode(display=False) as counter:
        run()
    flops: int = counter.get_total_flops()
    return flops


def cost(api: Api, given: Given) -> Cost:
    read = [tensor for _, tensor in _read(api, given)]
    moved = sum(_used(api, given, dims) * tensor.nbytes for dims, tensor in _read(api, given))
    inputs = [tensor for tensor in read if tensor.is_floating_point()]
    known = given.kept
    written = sum(known.answer[name].numel() * known.dtypes[name].itemsize for name in known.compared)
    return Cost(known.flops, moved + written, dtypes.computed_in(None, inputs), inferred=True)


def _read(api: Api, given: Given) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Each argument once, with the names of its axes, but for those that are written alone."""
    dims = {one.argument: one.dims for one in api.inputs}
    outputs = {one.argument for one in api.outputs} - set(dims)
    for name, value in given.call.items():
        if name not in outputs:
            yield from ((dims.get(name, ()), tensor) for tensor in tensors(value))


def _used(api: Api, given: Given, dims: tuple[str, ...]) -> float:
    """The share of what is gathered from that some index names."""
    indices = GATHERED.get(dims[0] if dims else "", ())
    for one in api.inputs:
        named = given.all.get(one.argument)
        if set(one.dims) & set(indices) and isinstance(named, Tensor) and _is_index(named):
            size = _first_size(api, given, dims[0])
            return min(1.0, len(named.unique()) / size) if size else 1.0
    return 1.0


def _is_index(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.int32, torch.int64)


def _first_size(api: Api, given: Given, axis: str) -> int:
    holders = (given.call.get(one.argument) for one in api.inputs if one.dims[:1] == (axis,))
    first = next((tensor for holder in holders for tensor in tensors(holder)), None)
    return 0 if first is None else first.shape[0]
