"""The group of ranks as one of them sees it: who it is, and what all of them agree on.

Ranks make the same calls, or the first that makes one more waits for ever. All that decides how many calls there are is
therefore agreed: the clock of the time budget, the free memory, and the samples themselves.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import Device


@dataclass(frozen=True)
class Ranks:
    """`control` is a group of its own, over gloo, that what is measured does not use."""

    rank: int
    size: int
    control: Any
    device: Device
    collective: str | None = None

    def all(self, tensor: Tensor) -> list[Tensor]:
        """This tensor of every rank, in their order and on this rank's device: for references over all inputs."""
        tensors = self.of_all_ranks(tensor.detach().cpu())
        return [one.to(tensor.device) for one in tensors]

    def of_all_ranks(self, value: Any) -> list[Any]:
        """The values that all ranks pass in, in the order of the ranks."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def agreed(self, value: float) -> float:
        """The largest of what each rank gives."""
        largest = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.control)
        return largest.item()

    def meet(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.control)

    def shared(self, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, Any]:
        """Memory of this rank that the others reach, by torch's symmetric memory, and its handle.

        Never with multicast, which torch otherwise creates for all such memory: nothing here uses it.
        """
        from torch.distributed import _symmetric_memory as symmetric

        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
            held = symmetric.empty(*shape, dtype=dtype, device=self.device.torch)
            return held, symmetric.rendezvous(held, dist.group.WORLD)  # type: ignore[arg-type] # there is one

    def clock(self) -> float:
        """A clock for budgets of time, which shows every rank the same."""
        return self.agreed(time.perf_counter())

    @property
    def shared_device(self) -> Device:
        facts = {one.name: getattr(self.device, one.name) for one in fields(self.device)}
        return SharedDevice(**facts, ranks=self)


@dataclass(frozen=True)
class SharedDevice(Device):
    """The device of a rank; its free memory is that of the rank that has the least."""

    ranks: Ranks

    def free_bytes(self) -> int:
        return int(-self.ranks.agreed(-super().free_bytes()))


_joined: list[Ranks] = []


def here() -> Ranks | None:
    """The group that this process is a rank of."""
    return _joined[-1] if _joined else None


def join(rank: int, size: int, store: Path, device: Device, collective: str | None = None) -> Ranks:
    """Become a rank of the group whose members meet at this file."""
    meeting = dist.FileStore(str(store), size)  # type: ignore[attr-defined] # torch documents it
    how: dict[str, Any] = {"device_id": device.torch} if device.is_gpu else {}
    backend = "nccl" if device.is_gpu else "gloo"
    dist.init_process_group(backend, store=meeting, rank=rank, world_size=size, **how)
    control = dist.new_group(backend="gloo", timeout=dt.timedelta(days=1))  # the case has a limit of its own
    _joined.append(Ranks(rank, size, control, device, collective))
    return _joined[-1]


def leave() -> None:
    if _joined:
        _joined.pop().meet()
        dist.destroy_process_group()
