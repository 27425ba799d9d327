"""What one recorded call was given: its arguments, its wrapper's plan, and what a sample says that tensors held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.spec.dtypes import OURS
from pytest_flashinfer_perf.traffic.recording import RecordedCall, Sample

BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2}
IN_PART = ("cache", "workspace", "buffer")


class NoCaseError(FlashinferPerfError):
    """A call that no case measures; the sentence says why."""


class GivenCall:
    """The arguments of a call by name, those of `plan` and of the wrapper's constructor behind them."""

    def __init__(self, call: RecordedCall, sample: Sample | None = None) -> None:
        wrapper = call.wrapper
        self.api, self.backend = call.api, call.backend
        self.call = dict(call.arguments)
        self.all: dict[str, Any] = {**(wrapper.init if wrapper else {}), **(wrapper.plan if wrapper else {})}
        self.all |= self.call
        self.sample = sample or {}

    def value(self, name: str, default: Any = None) -> Any:
        """A number, word or switch; the default for what was not given, or is something else."""
        known = self.all.get(name, default)
        if isinstance(known, Mapping) and "enum" in known:
            return known["enum"].rpartition(".")[2]
        return default if isinstance(known, (list, Mapping)) else known

    def number(self, *names: str) -> int:
        """The first of these that is a whole number."""
        for name in names:
            known = self.all.get(name)
            if isinstance(known, int) and not isinstance(known, bool):
                return known
        raise NoCaseError(f"{names[0]} was not recorded")

    def shape(self, *names: str) -> tuple[int, ...]:
        """Of the first of these that is a tensor."""
        for name in names:
            for one in tensors_in(self.all.get(name)):
                if all(one["tensor"]):
                    return tuple(one["tensor"])
        raise NoCaseError(f"{names[0]} was not recorded as a tensor with elements")

    def has(self, name: str) -> bool:
        return any(tensors_in(self.all.get(name)))

    def dtype(self, *names: str) -> str:
        """Of the first of these that is a tensor or a type, in the spelling of flags."""
        for name in names:
            value = self.all.get(name)
            stated = [value] if isinstance(value, Mapping) and "dtype" in value else list(tensors_in(value))
            if stated:
                return OURS.get(stated[0]["dtype"], str(stated[0]["dtype"]))
        raise NoCaseError(f"the type of {names[0]} was not recorded")

    def numbers(self, *names: str) -> list[int]:
        """What the first of these held, by its sample: lengths, values or counts."""
        for name in names:
            held = self.sample.get(name, {})
            found = next((held[kind] for kind in ("lengths", "values", "counts") if held.get(kind)), None)
            if found:
                return list(found)
        raise NoCaseError(f"what {' and '.join(names)} held was not recorded")

    @property
    def nbytes(self) -> int:
        """Of all tensors of the call that are read or written whole, which caches and memory to work in are not."""
        whole = (value for name, value in self.call.items() if not any(part in name for part in IN_PART))
        return sum(nbytes(one) for value in whole for one in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping) and "tensor" in value:
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from tensors_in(one)


def nbytes(tensor: Mapping[str, Any]) -> int:
    return size(tensor["tensor"]) * BYTES.get(tensor["dtype"], 1)


def size(shape: Sequence[int | None]) -> int:
    return math.prod(one or 0 for one in shape)
