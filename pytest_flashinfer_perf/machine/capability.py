"""Whether something can run here, and if not, a message with the reason and a remedy.

What the library declares (by decorators, signatures and imports) is read from it; HARDWARE is for the rest.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.errors import in_one_line
from pytest_flashinfer_perf.machine.garbage import importing

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device

Requirement = Callable[["Device"], "str | None"]

# Compute capabilities of backends, for APIs without a capability decorator and for tests that only name a backend:
# "9.0" is that one, "8.0+" that and later ones.
HARDWARE: dict[str, tuple[str, ...]] = {
    "fa2": ("7.5+",),
    "fa2_tc": ("8.0+",),
    "fa3": ("9.0",),
    "auto": ("7.5+",),
    "cudnn": ("8.0+",),
    "cudnn-native": ("8.0+",),
    "cutlass": ("10.0", "10.3", "10.7"),
    "cute-dsl": ("10.0", "10.3"),
    "trtllm-gen": ("10.0", "10.3", "10.7"),
    "trtllm-native": ("9.0", "10.0", "10.3", "10.7", "12.0+"),
    "trtllm-fmha-v2": ("9.0", "12.0"),
    "xqa": ("9.0", "10.0+"),
    "prims-ts": ("10.0", "10.3"),
    "cublas": ("8.9+",),
    "cublaslt": ("8.0+",),
    "tinygemm": ("9.0", "10.0", "10.3", "11.0+"),
    "cutile": ("9.0", "10.0+"),
    "trtllm": ("10.0", "10.3", "10.7"),
    "tgv": ("10.0", "10.3", "10.7"),
    "cake": ("10.0", "10.3"),
    "b12x": ("12.0+",),
    "trtllm_low_latency": ("10.0", "10.3", "10.7"),
    "cutedsl_low_latency": ("10.0", "10.3", "10.7"),
    "fp8_blockscale_gemm_sm90": ("9.0",),
    "mono_moe": ("9.0",),
    "trtllm-allreduce": ("9.0", "10.0", "10.3", "10.7", "12.0+"),
    "trtllm-alltoall": ("9.0", "10.0", "10.3", "10.7"),
    "vllm-allreduce": ("8.0+",),
    "nccl": ("7.5+",),
    "mnnvl": ("9.0", "10.0+"),
    "cutlass_fused_moe": ("8.9", "9.0", "10.0", "10.3", "10.7", "11.0", "12.0", "12.1"),
}

PACKAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "cudnn": (("cudnn", "nvidia-cudnn-frontend"),),
    "cudnn-native": (("cudnn", "nvidia-cudnn-frontend"),),
    "cutile": (("cuda.tile", "cuda-tile"),),
    **dict.fromkeys(
        ("cute-dsl", "prims-ts", "tgv", "b12x", "cutedsl_low_latency"), (("cutlass", "nvidia-cutlass-dsl"),)
    ),
}


def missing(requirements: tuple[Requirement, ...], device: Device) -> str | None:
    """The first requirement that is not met, as a sentence."""
    return next((reason for require in requirements if (reason := require(device))), None)


def backend(name: str, *apis: str) -> tuple[Requirement, ...]:
    """The requirements of a backend, and those that the library declares for the APIs it calls."""
    packages = tuple(package(module, dist, name) for module, dist in PACKAGES.get(name, ()))
    compilers = (tile_compiler,) if name == "cutile" else ()
    return (gpu(name), hardware(name, *apis), *packages, *compilers, flashinfer(*apis))


def hardware(name: str, *apis: str, capabilities: tuple[str, ...] = ()) -> Requirement:
    """The compute capability that the decorators of APIs declare, else one of `capabilities` or of HARDWARE."""
    listed = capabilities or HARDWARE.get(name, ())
    otherwise = (compute_capability(name, *listed),) if listed else ()

    def require(device: Device) -> str | None:
        if not device.is_gpu:  # whose decorators need no asking, which would import FlashInfer
            return gpu(name)(device)
        declaring = [declared_by(a, name if _chooses(api(a), name) else None) for a in apis if _declares(api(a))]
        return missing(tuple(declaring) or otherwise, device)

    return require


def _declares(function: Any) -> bool:
    return hasattr(function, "is_compute_capability_supported")


def _chooses(function: Any, name: str) -> bool:
    """Whether the API has this name among its backends; `auto` is any of them."""
    return name != "auto" and bool(getattr(function, "has_backend_choices", bool)())


def gpu(what: str) -> Requirement:
    return lambda device: None if device.is_gpu else f"{what} needs an NVIDIA GPU, this run is on the CPU"


def compute_capability(what: str, *wanted: str) -> Requirement:
    """Require a compute capability: `9.0` or `90` for exactly that one, `10.0+` or `100+` for that and later ones."""
    accepted = [_parse_capability(word) for word in wanted]

    def require(device: Device) -> str | None:
        here = device.capability
        if here is None:
            return gpu(what)(device)
        if any(here >= low if open_ended else here == low for low, open_ended in accepted):
            return None
        return f"{what} needs compute capability {' or '.join(map(_say, accepted))}, this is {here[0]}.{here[1]}"

    return require


def _parse_capability(word: str) -> tuple[tuple[int, int], bool]:
    digits = word.removesuffix("+")
    major, dot, minor = digits.partition(".")
    if not dot:
        major, minor = digits[:-1], digits[-1:]
    if not (major.isdecimal() and minor.isdecimal()):
        raise ValueError(f'compute capability {word!r}: write "9.0" or "90", and "10.0+" for it and later ones')
    return (int(major), int(minor)), word.endswith("+")


def _say(accepted: tuple[tuple[int, int], bool]) -> str:
    (major, minor), open_ended = accepted
    return f"{major}.{minor}{' or later' if open_ended else ''}"


def package(module: str, distribution: str, what: str) -> Requirement:
    return lambda _device: None if _is_there(module) else f"{what} needs {distribution}: pip install {distribution}"


def packages_not_here() -> Iterator[str]:
    """The packages that some backend needs and that are not installed."""
    needed = dict.fromkeys(pair for pairs in PACKAGES.values() for pair in pairs)
    yield from (distribution for module, distribution in needed if not _is_there(module))


def tile_compiler(_device: Device) -> str | None:
    """Require cuda.tile's compiler: from its extra, or from CUDA 13.1 in PATH or in the toolkit."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    compiler = shutil.which("tileiras") or shutil.which("tileiras", path=str(toolkit))
    if compiler or any(importlib.metadata.distributions(name="nvidia-cuda-tileiras")):
        return None
    return "cutile needs its compiler, tileiras: pip install 'cuda-tile[tileiras]'"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a parent package
        return False


@functools.cache
def flashinfer_import_error() -> str | None:
    if not _is_there("flashinfer"):
        return "flashinfer is not installed: pip install flashinfer-python"
    try:
        with importing(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings during the import are no reason not to use it
            importlib.import_module("flashinfer")
    except Exception as error:  # noqa: BLE001 - whatever the import raises is the reason
        return f"flashinfer failed to import: {in_one_line(error)}"
    return None


def flashinfer(*names: str) -> Requirement:
    """Require that FlashInfer imports and has these names (`bmm_fp8`, `decode.cudnn_batch_decode_with_kv_cache`)."""

    def require(_device: Device) -> str | None:
        broken = flashinfer_import_error()
        if broken:
            return broken
        absent = [name for name in names if api(name) is None]
        version = importlib.import_module("flashinfer").__version__
        return f"flashinfer {version} has no {', '.join(absent)}" if absent else None

    return require


def api(name: str) -> Any | None:
    """A FlashInfer function by its path below `flashinfer`; a name alone is looked up in the top modules."""
    head, _, tail = name.rpartition(".")
    modules = [head] if head else ["", *TOP_MODULES]
    return next((attribute for m in modules if (attribute := _attribute(m, tail)) is not None), None)


TOP_MODULES = ("decode", "prefill", "mla", "gemm", "fused_moe", "quantization")


def _attribute(module: str, name: str) -> Any | None:
    try:
        return getattr(importlib.import_module(f"flashinfer.{module}".rstrip(".")), name, None)
    except ImportError:
        return None


def declared_by(name: str, backend_name: str | None = None) -> Requirement:
    """Require what the decorators of a FlashInfer API declare for this backend and device."""

    def require(device: Device) -> str | None:
        unmet = missing((gpu(backend_name or name), flashinfer(name)), device)
        if unmet or device.capability is None:
            return unmet
        return _declared(api(name), name, backend_name, device.capability)

    return require


def _declared(function: Any, name: str, backend_name: str | None, capability: tuple[int, int]) -> str | None:
    here = capability[0] * 10 + capability[1]
    method = "is_backend_supported" if backend_name else "is_compute_capability_supported"
    check = getattr(function, method, None)
    if check is None or (check(backend_name, here) if backend_name else check(here)):
        return None
    subject = f"{name} with backend {backend_name}" if backend_name else name
    return f"flashinfer declares no support of {subject} on compute capability {capability[0]}.{capability[1]}"


def accepts(function: Any, parameter: str) -> bool:
    """Whether a FlashInfer function, or its `_plan_impl`, has this parameter."""
    return any(parameter in inspect.signature(f).parameters for f in _implementations(function))


def _implementations(function: Any) -> Iterator[Any]:
    yield function
    owner = getattr(inspect.getmodule(function), getattr(function, "__qualname__", "").partition(".")[0], None)
    implementation = getattr(owner, f"_{function.__name__}_impl", None)
    if implementation is not None:
        yield implementation
