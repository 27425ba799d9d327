"""Make the inputs of a workload in the order of its definition: random, given, or loaded from safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flashinfer_bench.data import Definition, SafetensorsInput, Workload
from safetensors import safe_open

from pytest_flashinfer_perf.errors import FlashinferPerfError

INTEGERS = {torch.int8: 128, torch.int16: 1024, torch.int32: 1024, torch.int64: 1024}
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float32, torch.float16, torch.bfloat16)


class InputError(FlashinferPerfError):
    """An input of the workload does not fit its definition; the message names the input."""


def drawn(definition: Definition, workload: Workload, root: Path, seed: int, device: torch.device) -> list[Any]:
    generator = torch.Generator(device).manual_seed(seed)
    shapes = definition.get_input_shapes(workload.axes)
    made: list[Any] = []
    for name, shape, dtype in zip(definition.inputs, shapes, definition.torch_input_dtypes, strict=True):
        given = workload.inputs.get(name)
        if given is not None and given.type == "scalar":
            made.append(given.value)
        elif given is not None and given.type == "safetensors":
            made.append(_loaded(name, given, root, shape, dtype).to(device))
        else:
            value = _random(name, shape or (), dtype, generator)
            if definition.op_type == "sampling" and name == "probs":
                value = value.softmax(-1)
            made.append(value.item() if shape is None else value)
    return made


def _random(name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    where: dict[str, Any] = {"device": generator.device, "generator": generator}
    if dtype in WIDE:
        return torch.randn(shape, dtype=dtype, **where)
    if dtype in NARROW:
        return torch.randn(shape, **where).clamp_(-2.0, 2.0).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype, **where)
    if dtype in INTEGERS:
        return torch.randint(-INTEGERS[dtype], INTEGERS[dtype], shape, dtype=dtype, **where)
    raise InputError(f"{name}: there are no random values of {dtype}, provide it as safetensors")


def _loaded(name: str, given: SafetensorsInput, root: Path, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(root / given.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(given.tensor_key)
    except Exception as error:  # the errors of safetensors depend on its version
        raise InputError(f"{name}: {given.path}, {given.tensor_key}: {error}") from error
    if (tuple(tensor.shape), tensor.dtype) != (tuple(shape or ()), dtype):
        has = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise InputError(f"{name}: {given.path}, {given.tensor_key}: {has}, not {tuple(shape or ())} of {dtype}")
    return tensor
