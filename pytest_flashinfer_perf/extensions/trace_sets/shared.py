"""Memory that a solution's process shares with its judge: the arguments of calls, and where their answers go."""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from pytest_flashinfer_perf.api import Device, check

ALIGNMENT = 512
GENEROUS = 1 << 30  # more than was asked for, so that it seldom grows
Like = tuple[Sequence[int], torch.dtype]


@dataclass(frozen=True)
class Slot:
    """The place of a tensor in the shared memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape) * self.dtype.itemsize

    def of(self, memory: Tensor) -> Tensor:
        return memory[self.start : self.end].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call: slots of tensors and other values, and the outputs' slots."""

    inputs: tuple[Any, ...]
    outputs: tuple[Slot, ...]

    @property
    def end(self) -> int:
        return self.outputs[-1].end

    def values_in(self, memory: Tensor) -> tuple[Any, ...]:
        return tuple(value.of(memory) if isinstance(value, Slot) else value for value in self.inputs)

    def written(self, memory: Tensor) -> tuple[Tensor, ...]:
        return tuple(slot.of(memory) for slot in self.outputs)

    def fill(self, memory: Tensor, values: Sequence[Any]) -> None:
        for slot, content in zip(self.inputs, values, strict=True):
            if isinstance(slot, Slot):
                slot.of(memory).copy_(content)
        check.poison(self.written(memory))


def slots(tensors: Iterable[Like]) -> tuple[Slot, ...]:
    start, placed = 0, list[Slot]()
    for shape, dtype in tensors:
        placed.append(Slot(tuple(shape), dtype, start))
        start = -(-placed[-1].end // ALIGNMENT) * ALIGNMENT
    return tuple(placed)


def arranged(contents: Sequence[Sequence[Any]], outputs: Sequence[Like]) -> tuple[Arguments, ...]:
    """The arguments of calls with these inputs. All outputs lie behind all inputs, to be copied in one piece."""
    tensors = [(value.shape, value.dtype) for inputs in contents for value in inputs if isinstance(value, Tensor)]
    placed = slots([*tensors, *(list(outputs) * len(contents))])
    places, rest = iter(placed), iter(placed[len(tensors) :])
    arguments = []
    for inputs in contents:
        bound = tuple(next(places) if isinstance(value, Tensor) else value for value in inputs)
        arguments.append(Arguments(bound, tuple(next(rest) for _ in outputs)))
    return tuple(arguments)


class Memory:
    """The judge's side: one piece that grows, since what a killed process has opened of a GPU is not given back."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.tensor = torch.empty(0, dtype=torch.uint8)
        self.file = -1
        self.handle: Any = None

    def grow(self, size: int) -> bool:
        """Whether it had to be replaced by a larger one, which other processes have not opened."""
        if size <= len(self.tensor):
            return False
        size = max(size, min(2 * len(self.tensor), GENEROUS))
        if self._device.is_gpu:
            # A process that opens a tensor opens the segment that it lies in: a pool of its own keeps answers out.
            self._pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(self._pool):
                self.tensor = torch.zeros(size, dtype=torch.uint8, device=self._device.torch)
            self._device.synchronize()
            self.handle = reduce_tensor(self.tensor)
        else:
            self._in_a_file(size)
        return True

    def _in_a_file(self, size: int) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = os.memfd_create("trace-set", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, size)
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.tensor = opened_file(self.file, size)


def opened_file(file: int, size: int) -> Tensor:
    return torch.from_file(f"/proc/self/fd/{file}", shared=True, size=size, dtype=torch.uint8)
