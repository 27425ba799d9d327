"""The fingerprint of a call's inputs, which tells whether the call changed them.

Memory is read as rows of 32-bit words. Each word is multiplied by a random 64-bit number, one for each column, and the
sum of a row is kept modulo 2^64: multilinear hashing, by Lemire and Kaser, "Strongly universal string hashing is fast",
2014. Whatever the change of a row is, one choice of random numbers in 2^33 hides it at most. With words of 64 bits a
change of high bits, such as signs, would be hidden by half of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pytest_flashinfer_perf.engine.copies import Extent, extents, memory, storage
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.spec.nested import tensors

COLUMNS = 1 << 14
ROWS, ROWS_ON_GPU = 8, 1024  # multiplied at once: what the cache of a CPU holds, and a few launches for a GPU
LARGEST_MASK = 1 << 28  # bytes; no input is verified in a larger storage that has outputs as well


class Fingerprint:
    """Checksums of the memory that a call's inputs have at first, by storage, and where each input is.

    What the call writes as `out` is no part of it. In a storage with both, a mask has the bytes of inputs alone.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._inputs = _inputs(target)  # which keeps their memory from being used again
        self._places = list(map(_place, self._inputs))
        own, shared = set(map(_place, target.outputs)), set(map(storage, target.outputs))
        read = [tensor for tensor in self._inputs if _place(tensor) not in own]
        beside = [tensor for tensor in read if storage(tensor) in shared]
        self._memory = memory(read, extents(read, shared))
        self._masks: dict[int, Tensor] = {}
        for key in set(map(storage, beside)):
            self._add_mask(key, [t for t in beside if storage(t) == key])
        self._sums = {key: self._sum(key) for key in self._memory}

    def _add_mask(self, key: int, inputs: Sequence[Tensor]) -> None:
        outputs = [tensor for tensor in self._target.outputs if storage(tensor) == key]
        extent = extents((inputs, outputs)).get(key)
        if extent is not None and extent.high - extent.low <= LARGEST_MASK:
            self._memory |= memory((inputs, outputs), {key: extent})
            self._masks[key] = _mask(inputs, outputs, extent)

    def _sum(self, key: int) -> Tensor:
        return checksums(self._memory[key] * self._masks[key] if key in self._masks else self._memory[key])

    def changed(self) -> set[int]:
        """The storages in which a byte of an input is another one now."""
        return {key for key, sums in self._sums.items() if not torch.equal(sums, self._sum(key))}

    def moved(self) -> bool:
        """Whether the arguments have other tensors now, or a tensor of them has other memory or another shape."""
        return list(map(_place, _inputs(self._target))) != self._places


def _inputs(target: Target) -> list[Tensor]:
    """The tensors among the arguments, except those that are named as outputs themselves."""
    named = {id(out) for out in target.outputs}
    return [tensor for tensor in tensors((target.args, dict(target.kwargs))) if id(tensor) not in named]


def _place(tensor: Tensor) -> tuple[object, ...]:
    where = (storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (*where, tensor.is_conj(), tensor.is_neg())


def _mask(inputs: Iterable[Tensor], outputs: Iterable[Tensor], extent: Extent) -> Tensor:
    """1 for each byte of an input that is in no output, 0 for others."""
    [device] = {tensor.device for tensor in inputs}
    mask = torch.zeros(extent.high - extent.low, dtype=torch.uint8, device=device)
    for value, those in ((1, inputs), (0, outputs)):
        for tensor in those:
            size = tensor.itemsize
            shape = [1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)]
            strides = [stride * size for stride in tensor.stride()]
            first = int(tensor.storage_offset()) * size - extent.low
            mask.as_strided((*shape, size), (*strides, 1), first).fill_(value)
    return mask


@functools.cache
def _numbers(device: torch.device) -> Tensor:
    drawn = torch.empty(COLUMNS, dtype=torch.int64, device="cpu")
    return drawn.random_(-(2**63), 2**63 - 1, generator=torch.Generator().manual_seed(2014)).to(device)


def checksums(raw: Tensor) -> Tensor:
    """One for each row of words, the last of which may be shorter, and one for up to three bytes at the end."""
    numbers, whole = _numbers(raw.device), len(raw) // 4 * 4
    words, rest = raw[:whole].view(torch.int32), raw[whole:]
    square = len(words) // COLUMNS * COLUMNS
    rows = words[:square].view(-1, COLUMNS).split(ROWS_ON_GPU if raw.is_cuda else ROWS)
    return torch.cat(
        [(block * numbers[: block.shape[1]]).sum(1) for block in (*rows, words[square:][None], rest[None])]
    )
