"""Find the FlashInfer modules of cases: call each with a pretended GPU, and record the modules that it loads."""

from __future__ import annotations

import dis
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.kernel_timing.run import uses_graph
from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measurement import one_case
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case, quarantined
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions


@dataclass
class Needed:
    """The modules of all cases by name, and why some cases have none: they cannot run there, or their call failed."""

    modules: dict[str, Any] = field(default_factory=dict)
    cannot: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)


def needed(cases: list[Case], settings: Settings) -> Needed:
    """Find the modules for all GPUs that FlashInfer compiles for."""
    broken = capability.flashinfer_import_error()
    if broken:
        raise CannotRunError(broken)
    targets: Any = importlib.import_module("flashinfer.compilation_context").CompilationContext()
    found = Needed()
    with _recording(found.modules):
        for major, minor in sorted(targets.TARGET_CUDA_ARCHS):
            device = _pretended(major, int(minor.rstrip("af")))
            for case in cases:
                if case.backend_name != "torch":  # it loads no module of FlashInfer's
                    _follow(case, device, settings, found)
    return found


def _pretended(major: int, minor: int) -> Device:
    pretend((major, minor))
    devices._gpu.cache_clear()  # noqa: SLF001 - the cached one is another GPU
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            _forget(module)
    return devices.find("cuda:0")


def _forget(module: ModuleType) -> None:
    """Clear the module's caches, which belong to another GPU."""
    for value in list(vars(module).values()):
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def _follow(case: Case, device: Device, settings: Settings, found: Needed) -> None:
    known = quarantined(case, settings.quarantine, all_routines())
    reason = known.sentence if known else one_case.obstacle(case, device, settings.max_memory)
    if reason:
        _count(found.cannot, reason)
        return
    try:
        with warnings.catch_warnings(), redirect_stdout(None), Pretence():
            warnings.simplefilter("ignore")
            _called(case, device, settings)
    except WrongAnswerError:  # of a call that computes nothing; its modules are known by then
        return
    except Exception as error:  # noqa: BLE001 - a pretended GPU may cause any error
        _count(found.lost, f"{case.routine.name}, {case.backend_name}: {_first_line(error)}")


def _called(case: Case, device: Device, settings: Settings) -> None:
    routine, p = case.routine, case.params
    x = routine.inputs(p, torch.Generator().manual_seed(case.seed), PRETENDED)
    built = case.backend.build(
        p, x, LaunchOptions(case.backend_name, uses_graph(settings.measuring, device, routine.cuda_graph))
    )
    built.launch(x if built.takes is None else built.takes)


@contextmanager
def _recording(modules: dict[str, Any]) -> Iterator[None]:
    """Record the modules that FlashInfer loads. Each is loaded once, since wrappers cache it."""
    spec_type: Any = importlib.import_module("flashinfer.jit.core").JitSpec
    build_and_load = spec_type.build_and_load

    def record(spec: Any) -> Anything:
        modules[spec.name] = spec
        return Anything(1)

    spec_type.build_and_load = record
    try:
        yield
    finally:
        spec_type.build_and_load = build_and_load


def _count(reasons: dict[str, int], reason: str) -> None:
    reasons[reason] = reasons.get(reason, 0) + 1


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


# Pretend a GPU, of any kind and without hardware, for code that only selects the kernels to call.

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
        """As many values as the caller unpacks."""
        frame = sys._getframe(1)  # noqa: SLF001 - only the caller's bytecode has the number
        words = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
        return iter([self] * (words[1] if dis.opname[words[0]] == "UNPACK_SEQUENCE" else 0))


def pretend(capability: tuple[int, int]) -> None:
    """Make torch report one GPU of this compute capability from now on."""
    major, minor = capability
    name = f"a GPU of compute capability {major}.{minor}"
    seen = SimpleNamespace(name=name, major=major, minor=minor, uuid="none", **SIZES)
    answers = {
        "get_device_capability": capability,
        "get_device_properties": seen,
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


def _one_row(asked: tuple[Any, ...]) -> tuple[Any, ...]:
    """Index one row instead of a mask, which has no contents."""
    whole, index = asked
    is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
    return (whole, (torch.zeros(1, dtype=torch.int64),) * index.dim()) if is_mask else asked


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
