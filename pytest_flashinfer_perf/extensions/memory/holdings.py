"""The memory that a call holds beside its arguments, by the name that leads to it: `wrapper._int_workspace_buffer`.

FlashInfer keeps workspaces for all calls of a process as well: those that a call makes where it finds none are its own.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import Target, instruments
from pytest_flashinfer_perf.spec.nested import parts, tensors

MOST = 2_000  # objects that are looked at, the nearest first
NO_HOLDERS = (type, ModuleType, str, bytes, int, float, type(None))


class Holding(NamedTuple):
    """Memory as it was held at some moment; this keeps none. `for_graphs` if captured graphs may use it."""

    tensor: weakref.ref[Tensor]
    address: int
    bytes: int
    for_graphs: bool


Holdings = dict[str, Holding]  # by name


def holding(tensor: Tensor, for_graphs: bool = True) -> Holding:
    return Holding(weakref.ref(tensor), address(tensor), tensor.untyped_storage().nbytes(), for_graphs)


def address(tensor: Tensor | None) -> int:
    """Where its memory begins; 0 for a tensor that has none of its own."""
    return 0 if tensor is None or tensor.layout is not torch.strided else tensor.untyped_storage().data_ptr()


def of_call(target: Target, kind: str) -> Holdings:
    """What the function holds on this kind of device, without its arguments and outputs."""
    listed = {0, *map(address, tensors((target.args, dict(target.kwargs), target.outputs)))}
    held: Holdings = {}
    for name, tensor, for_graphs in _reached(target.function):
        if tensor.device.type == kind and address(tensor) not in listed:
            listed.add(address(tensor))
            held[name] = holding(tensor, for_graphs)
    return held


def _reached(function: object) -> Iterator[tuple[str, Tensor, bool]]:
    waiting: deque[tuple[str, object, bool]] = deque([("", function, False)])
    entered: dict[int, object] = {}
    while waiting and len(entered) < MOST:
        name, one, for_graphs = waiting.popleft()
        if id(one) in entered or isinstance(one, NO_HOLDERS):
            continue
        entered[id(one)] = one
        if isinstance(one, Tensor):
            yield name.lstrip("."), one, for_graphs
            continue
        inside = dict(_inside(one))
        for_graphs |= inside.get("_use_cuda_graph") is True  # as FlashInfer's wrappers say
        waiting.extend((f"{name}.{place}", value, for_graphs) for place, value in inside.items())


def _inside(one: Any) -> Iterator[tuple[object, object]]:
    if isinstance(one, FunctionType):
        cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
        yield from ((name, value) for name, cell in cells for value in gc.get_referents(cell))
    elif isinstance(one, MethodType):
        yield "self", one.__self__
    elif isinstance(one, partial):
        yield from (("function", one.func), ("args", one.args), ("keywords", one.keywords))
    yield from ((part.place, part.value) for part in parts(one))


def lost(before: Holdings, now: Holdings) -> list[str]:
    """Memory of graphs that neither its holder has any more nor anything else that is held."""
    held = {one.address for one in now.values()}
    gone = {name: one for name, one in before.items() if address(one.tensor()) != one.address}
    return [name for name, one in gone.items() if one.for_graphs and one.address not in held]


def _workspaces() -> dict[Any, Tensor]:
    workspaces: dict[Any, Tensor] = getattr(sys.modules.get("flashinfer.utils"), "_cache_buf", {})
    return workspaces


def of_process() -> Holdings:
    """FlashInfer's workspaces, which all calls share."""
    return {f"flashinfer's {name}": holding(tensor) for (name, *_), tensor in _workspaces().items()}


def shared_by(call: instruments.Call) -> Holdings:
    """Those of them that a call makes where it finds none; the others come back."""
    there, others = _workspaces(), dict(_workspaces())
    there.clear()
    try:
        call()
        return of_process()
    finally:
        there.clear()
        there.update(others)
