"""What cannot be measured: refused in a sentence that says what to do."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.engine import copies
from pytest_flashinfer_perf.engine.copies import unusual_kind
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.spec.nested import reached, tensors

ONCE = (Awaitable, Iterator, AsyncIterator)
LATER = (
    "done",
    "ready",
    "block_until_ready",
    "compute",
    "collect",
)  # methods of futures, and of arrays of lazy libraries


class CallError(FlashinferPerfError, TypeError):
    """The call, or one of its arguments, is of a kind that cannot be measured."""


def refuse_arguments(arguments: Any) -> None:
    """Raise CallError for what cannot be given to a call more than once, or cannot be copied and verified."""
    for leaf in reached(arguments):
        kind = unusual_kind(leaf) if isinstance(leaf, Tensor) else ""
        if kind:
            advice = "let fn hold it, with cold_l2 flush, and pass tensors of the usual kind"
            raise CallError(f"an argument is a {kind}, which cannot be copied and verified: {advice}")
        if isinstance(leaf, ONCE):
            raise CallError(f"an argument is a {type(leaf).__name__}, which one call uses up: pass a list")
    gpus = sorted({str(tensor.device) for tensor in tensors(arguments) if tensor.is_cuda})
    if len(gpus) > 1:
        raise CallError(f"arguments are on {' and '.join(gpus)}: one call is timed on one GPU")


def refuse_tensors(name: str, tree: Any) -> None:
    """Raise CallError for tensors that cannot be compared."""
    kind = next(filter(None, map(unusual_kind, tensors(tree))), None)
    if kind is not None:
        raise CallError(f"{name} is a {kind}, which cannot be compared: give it as tensors of the usual kind")


def refuse_lazy(returned: Any) -> None:
    """Raise CallError if what the call returned is yet to be computed."""
    for leaf in reached(returned):
        kind = _lazy(leaf)
        if kind:
            if inspect.iscoroutine(leaf):
                leaf.close()  # or Python warns that it was never awaited
            how = "asyncio.run(f(x))" if isinstance(leaf, Awaitable) else "list(f(x)) or f(x).result()"
            raise CallError(
                f"the call returned a {kind}, and computed nothing yet: time what computes it, such as {how}"
            )


def _lazy(leaf: Any) -> str:
    if isinstance(leaf, Tensor):
        return unusual_kind(leaf) if leaf.is_meta else ""
    is_function = inspect.isroutine(leaf) or isinstance(leaf, functools.partial)
    is_later = any(callable(getattr(type(leaf), name, None)) for name in LATER)
    return type(leaf).__name__ if isinstance(leaf, ONCE) or is_function or is_later else ""


def obstacle(arguments: Any) -> str:
    """Why these arguments cannot be copied; empty if they can be."""
    holder = next((leaf for leaf in reached(arguments) if not isinstance(leaf, Tensor) and _holds(leaf)), None)
    if holder is not None:
        return f"an argument, a {type(holder).__name__}, holds memory that is not copied"
    return copies.obstacle(arguments)


def _holds(leaf: Any) -> bool:
    if isinstance(leaf, torch.nn.Module):
        return any(True for _ in (*leaf.parameters(), *leaf.buffers()))
    if hasattr(type(leaf), "__dlpack__") or hasattr(type(leaf), "__cuda_array_interface__"):
        return getattr(leaf, "ndim", 1) > 0
    if inspect.isroutine(leaf) or inspect.isclass(leaf) or inspect.ismodule(leaf):
        return False
    inside = getattr(leaf, "__dict__", None)
    if isinstance(leaf, (AbstractSet, deque, Mapping)):
        inside = tuple(leaf.values() if isinstance(leaf, Mapping) else leaf)
    return any(True for _ in tensors(inside))
