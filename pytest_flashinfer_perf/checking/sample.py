"""Choose the rows of an answer to compare, if computing the reference for all rows would take too long."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import index
from pytest_flashinfer_perf.machine.devices import Device

# Floating-point operations that a reference may take, in fp32: about a second on a laptop, a tenth of one on a GPU.
BUDGET_CPU, BUDGET_GPU = 4e10, 4e12


@dataclass(frozen=True)
class Rows:
    """The number of rows of a routine's outputs, and the rows at which requests or groups begin and end."""

    count: int
    edges: Tensor


@dataclass(frozen=True)
class Sample:
    """The chosen rows, in ascending order."""

    chosen: Tensor
    count: int

    def of(self, output: Tensor, like: Tensor) -> Tensor:
        """The output's elements in the chosen rows, in the shape of `like`."""
        return output.reshape(self.count, -1)[self.chosen].reshape(like.shape)

    def locate(self, nth: int, output: Tensor) -> tuple[int, ...]:
        """The index in the output of the sample's nth element."""
        row, column = divmod(nth, output.numel() // self.count)
        flat = int(self.chosen[row]) * (output.numel() // self.count) + column
        return index(flat, output.shape)


def budget(device: Device) -> float:
    return BUDGET_GPU if device.is_gpu else BUDGET_CPU


def within(allowed: float, flops: float, rows: Rows, seed: int) -> Sample | None:
    """As many rows as the allowed work permits, including the first and the last; None if that is all rows."""
    wanted = max(2, int(rows.count * min(1.0, allowed / flops))) if flops else rows.count
    if wanted >= rows.count:
        return None
    rand = torch.Generator().manual_seed(seed)
    edges = rows.edges.cpu()
    half = edges[torch.randperm(len(edges), generator=rand)[: wanted // 2]]
    ends = torch.tensor([0, rows.count - 1])
    others = torch.randint(rows.count, (wanted,), generator=rand)
    first_ones = dict.fromkeys(torch.cat([ends, half, others]).tolist())
    chosen = sorted(list(first_ones)[:wanted])
    return Sample(torch.tensor(chosen, device=rows.edges.device), rows.count)
