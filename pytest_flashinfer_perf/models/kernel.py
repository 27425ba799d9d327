"""One kernel of a step: how often it runs, its weights, and the cases that measure it or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_flashinfer_perf.models.config_json import ConfigError
from pytest_flashinfer_perf.models.quantisation import BITS


@dataclass(frozen=True)
class Call:
    """Parameters of a routine, by name."""

    routine: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Kernel:
    """`parameters`, `bytes` and `flops` are of all `count` calls in the step, on one GPU."""

    name: str
    count: int = 1
    parameters: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    calls: tuple[Call, ...] = field(default=(), compare=False)  # any one of them does the work
    gap: str = ""
    note: str = ""

    @classmethod
    def gap_of(cls, name: str, reason: str, *, count: int = 1, parameters: int = 0, flops: float = 0.0) -> Kernel:
        return cls(name, count, parameters, parameters * BITS["bf16"] / 8, flops, gap=reason)

    @classmethod
    def called(cls, name: str, calls: tuple[Call, ...], parameters: int, flops: float, stored: str = "bf16") -> Kernel:
        return cls(name, 1, parameters, parameters * BITS[stored] / 8, flops, calls)

    @property
    def same(self) -> tuple[Any, ...]:
        """What kernels have in common that are one entry of a step."""
        calls = tuple((call.routine, tuple(sorted(call.params.items()))) for call in self.calls)
        return self.name, self.gap, self.note, calls

    def times(self, count: int) -> Kernel:
        return replace(
            self,
            count=self.count * count,
            parameters=self.parameters * count,
            bytes=self.bytes * count,
            flops=self.flops * count,
        )

    def joined(self, other: Kernel) -> Kernel:
        return replace(
            self,
            count=self.count + other.count,
            parameters=self.parameters + other.parameters,
            bytes=self.bytes + other.bytes,
            flops=self.flops + other.flops,
        )


def shared(count: int, gpus: int, what: str) -> int:
    """A GPU's part of what must divide evenly."""
    if count % gpus:
        raise ConfigError(f"{count} {what}, which {gpus} GPUs cannot share evenly")
    return count // gpus
