"""Everything of torch, FlashInfer and Python that prebuild replaces, to follow a call to its modules without a GPU.

What is replaced, and what happens where it stops to hold (held by FlashInfer 0.6.18 to 0.7.2 and torch 2.11 to 2.13):

* `JitSpec.build_and_load` of FlashInfer, by which every module is loaded: without it prebuild ends with a sentence.
* `sys.modules["cudnn"]`, so that FlashInfer offers cuDNN, whose graphs are no modules of FlashInfer.
* Functions of `torch.cuda`, in this process for good, and functions of tensors, while `Pretence` is entered.

A function that is not replaced here but asks a GPU raises in one case: prebuild lists that call as failed, and compiles
the modules that it had met; the others are compiled when the case runs.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from pytest_flashinfer_perf.spec.routine import CannotRunError

HERE, NOWHERE, PRETENDED = torch.device("cpu"), torch.device("meta"), torch.device("cuda", 0)
LARGEST_HELD = 1 << 20  # bytes
NEWEST = 1_000_000  # version of cuDNN, whose graphs are not FlashInfer modules
# Those of an H200 for all capabilities; none of them affects which module is loaded.
SIZES = {
    "multi_processor_count": 132,
    "L2_cache_size": 50 << 20,
    "total_memory": 141 << 30,
    "shared_memory_per_block_optin": 227 << 10,
    "shared_memory_per_multiprocessor": 228 << 10,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 1 << 16,
    "warp_size": 32,
}


class Anything(int):
    """A value without meaning that acts as a number, a function and an object with every attribute."""

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> Anything:
        return self

    def __getitem__(self, _index: Any) -> Anything:
        return self

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        return None

    def __iter__(self) -> Iterator[Anything]:
        """A pair: cuDNN's graph and its tensors, a plan and its size; nothing else of FlashInfer unpacks one."""
        return iter((self, self))


def pretend(capability: tuple[int, int]) -> None:
    """Make torch report one GPU of this compute capability from now on."""
    major, minor = capability
    name = f"a GPU of compute capability {major}.{minor}"
    properties = SimpleNamespace(name=name, major=major, minor=minor, uuid="none", **SIZES)
    answers = {
        "get_device_capability": capability,
        "get_device_properties": properties,
        "get_device_name": name,
        "is_available": True,
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (1 << 50, 1 << 50),
        "current_blas_handle": 1,
        **dict.fromkeys(("init", "_lazy_init", "set_device", "synchronize", "empty_cache"), None),
        **dict.fromkeys(("current_stream", "default_stream", "Stream", "stream", "Event", "device"), Anything(1)),
    }
    for function, answer in answers.items():
        setattr(torch.cuda, function, _always(answer))
    torch.version.cuda = torch.version.cuda or "13.0"


def pretend_cudnn() -> None:
    """Pretend that cuDNN is installed; call it before FlashInfer is imported."""
    cudnn: Any = Anything(NEWEST)
    cudnn.__spec__ = ModuleSpec("cudnn", None)
    sys.modules["cudnn"] = cudnn


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: answer


@contextmanager
def recording(modules: dict[str, Any]) -> Iterator[None]:
    """Record the modules that FlashInfer loads. Each is loaded once, since wrappers cache it."""
    spec_type: Any = getattr(importlib.import_module("flashinfer.jit.core"), "JitSpec", None)
    build_and_load = getattr(spec_type, "build_and_load", None)
    if build_and_load is None:
        raise CannotRunError("this FlashInfer has no JitSpec.build_and_load, by which prebuild finds modules")

    def note(spec: Any) -> Anything:
        modules[spec.name] = spec
        return Anything(1)

    spec_type.build_and_load = note
    try:
        yield
    finally:
        spec_type.build_and_load = build_and_load


READ: Mapping[Any, Callable[[Tensor], Any]] = {
    Tensor.item: lambda t: 1.0 if t.dtype.is_floating_point else 1,
    Tensor.tolist: lambda t: torch.ones(t.shape).tolist(),
    Tensor.numpy: lambda t: torch.ones(t.shape).numpy(),
    Tensor.nonzero: lambda t: torch.zeros(1, t.dim(), dtype=torch.int64),
    Tensor.__bool__: lambda _t: True,
    Tensor.__int__: lambda _t: 1,
    Tensor.__index__: lambda _t: 1,
    Tensor.__float__: lambda _t: 1.0,
}
ABOUT: Mapping[Any, Any] = {
    Tensor.device.__get__: PRETENDED,
    Tensor.is_cuda.__get__: True,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: False,  # type: ignore[attr-defined]
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
    Tensor.get_device: 0,
    Tensor.is_pinned: True,
}
STAYS = (Tensor.cuda, Tensor.cpu, Tensor.pin_memory)


class Pretence(TorchFunctionMode):
    """Replaces the functions of torch inside a `with` block."""

    def __torch_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        if function in ABOUT:
            return ABOUT[function]
        if function in STAYS:
            return args[0]
        named = {name: value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return _done(function, args, named)


def _done(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(tensor.is_meta for tensor in tensors):
        if function in READ:
            return READ[function](args[0])
        return _without_contents(function, _one_row(args) if function is Tensor.__getitem__ else args, kwargs)
    with suppress(Exception):  # functions that return no tensor have no shape
        shape = _without_contents(function, args, kwargs if tensors else {**kwargs, "device": NOWHERE})
        if shape.nbytes > LARGEST_HELD:
            return shape
    return function(*_placed(args, HERE), **_placed(kwargs, HERE))


def _one_row(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Index one row instead of a mask, which has no contents."""
    whole, index = arguments
    is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
    return (whole, (torch.zeros(1, dtype=torch.int64),) * index.dim()) if is_mask else arguments


def _without_contents(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    return function(*_placed(args, NOWHERE), **_placed(kwargs, NOWHERE))


def _placed(tree: Any, where: torch.device) -> Any:
    """Move tensors and devices; scalar tensors may stay, since they work with any device."""

    def placed(leaf: Any) -> Any:
        if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf.startswith(("cuda", "cpu"))):
            return where
        return leaf.to(where) if isinstance(leaf, Tensor) and leaf.dim() and where == NOWHERE else leaf

    return tree_map(placed, tree)
