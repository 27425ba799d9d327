"""Prepare a case after its first call: the answer to compare with, and the bytes and FLOPs of the call.

Both come from one call of the reference, whose products are counted on the way; the bytes from what the template
declares, and from what the first call was seen to change.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pytest_flashinfer_perf.extensions.apis import samplers, truth
from pytest_flashinfer_perf.extensions.apis.call_inputs import CallInputs, Prepared, flat, live, write_only, written
from pytest_flashinfer_perf.extensions.apis.special_cases import GATHERED
from pytest_flashinfer_perf.extensions.apis.templates import Api
from pytest_flashinfer_perf.spec import Cost, dtypes, tensors

INDICES = (torch.int32, torch.int64)


def prepared(api: Api, inputs: CallInputs) -> Prepared:
    if samplers.is_sampler(api):
        no_difference = (torch.zeros(1),)
        distribution = samplers.probabilities(api, inputs.all)
        return Prepared(cost(api, inputs), (), no_difference, "float64", probabilities=distribution)
    answer: dict[str, Tensor] = {}
    computed_in, missing = "nothing", ""
    compared = inputs.shared.prepared.outputs if inputs.shared.prepared else ()
    with FlopCounterMode(display=False) as products:
        try:
            answer, computed_in = truth.answer(api, inputs, compared)
        except truth.NoReferenceError as error:
            missing = str(error)
    outputs = tuple(name for name in inputs.shared.first.outputs if name in answer)
    has_nucleus = inputs.all.get("top_p") is not None and "probs" in inputs.call
    undecided = samplers.undecided(inputs.all, inputs.call["probs"]) if has_nucleus else None
    reference = tuple(truth.meant(api, name, answer[name], inputs.all, undecided) for name in outputs)
    whole = cost(api, inputs, {name: answer[name] for name in outputs}, products.get_total_flops())
    return Prepared(whole, outputs, reference, computed_in, missing, undecided=undecided)


def cost(api: Api, inputs: CallInputs, answer: Mapping[str, Tensor] = {}, flops: int = 0) -> Cost:
    """The cost. What is changed in place counts by the rows that change, also as read, unless products may read all."""
    shares, held = dict(_changed(api, inputs)), dict(flat(written(api, inputs)))
    read = list(_read(api, inputs))
    reads = {} if flops else shares
    moved = sum(reads.get(tensor, _used(api, inputs, dims)) * _size(tensor) for dims, tensor in read)
    types = inputs.shared.first.outputs
    stored = sum(shares.get(tensor, 1.0) * tensor.nbytes for tensor in held.values())
    returned = {name: value for name, value in answer.items() if name not in held}
    # The outputs of a function that returns None are arguments, also where the template does not say which.
    if returned and inspect.signature(live(api).function).return_annotation not in (None, "None"):
        stored += sum(value.numel() * types[name].itemsize for name, value in returned.items())
    floats = [tensor for _, tensor in read if tensor.is_floating_point()]
    return Cost(flops, round(moved + stored), dtypes.computed_in(None, floats), inferred=True)


def _size(tensor: Tensor) -> int:
    """The size in bytes; what an expanded tensor stores once counts once."""
    held = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(held) * tensor.itemsize


def _changed(api: Api, inputs: CallInputs) -> Iterator[tuple[Tensor, float]]:
    """Each tensor that the call changes in place, such as a cache, with the share of its rows that the call changes."""
    whole = list(write_only(api, inputs))
    for name, shares in inputs.shared.first.changed.items():
        for tensor, share in zip(tensors(inputs.call[name]), shares, strict=True):
            if share and not any(tensor is one for one in whole):
                yield tensor, share


def _read(api: Api, inputs: CallInputs) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """The arguments that are read, each once, with the names of its axes."""
    dims = {one.argument: one.dims for one in api.inputs}
    filled = inputs.shared.unfilled & set(inputs.shared.first.changed)
    outputs = {one.argument for one in api.outputs} - set(dims) | filled
    for name, value in inputs.call.items():
        if name not in outputs:
            yield from ((dims.get(name, ()), tensor) for tensor in tensors(value))


def _used(api: Api, inputs: CallInputs, dims: tuple[str, ...]) -> float:
    """The share of what is gathered from that some index names, and of experts those that are chosen."""
    if "expert" in "".join(dims[:1]) and len(dims) > 1:
        return _chosen(api, inputs)
    indices = GATHERED.get(dims[0] if dims else "", ())
    for one in api.inputs:
        named = inputs.all.get(one.argument)
        if set(one.dims) & set(indices) and isinstance(named, Tensor) and named.dtype in INDICES:
            holders = [inputs.call.get(holder.argument) for holder in api.inputs if holder.dims[:1] == dims[:1]]
            first = next(tensors(holders), None)
            return 1.0 if first is None or not len(first) else min(1.0, len(named.unique()) / len(first))
    return 1.0


def _chosen(api: Api, inputs: CallInputs) -> float:
    """The share of experts that some token chooses, where all are equally likely, as `init` draws them."""
    held = [(one.dims, inputs.call[one.argument]) for one in api.inputs if one.argument in inputs.call]
    shapes = [zip(dims, value.shape, strict=False) for dims, value in held if isinstance(value, Tensor)]
    sizes = {axis: size for shape in shapes for axis, size in shape}
    tokens, experts, each = sizes.get("seq_len"), sizes.get("num_experts"), inputs.all.get("top_k")
    return 1 - (1 - each / experts) ** tokens if tokens and experts and each else 1.0
