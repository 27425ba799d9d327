"""Shared by the routines between GPUs: how many there are, which one this process is, and what rounding allows.

Every rank draws the inputs of all ranks from one seed and gives its own ones to the call. So a reference needs nobody
else, and the check's negated activations are negated on every rank at once: a stale buffer of another rank shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.api import Device, capability, check
from pytest_flashinfer_perf.extensions.ranks import joined
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.spec.dtypes import HALF, TORCH
from pytest_flashinfer_perf.spec.params import Params, flag
from pytest_flashinfer_perf.spec.routine import Built, CannotRunError, LaunchOptions, Routine

B = TypeVar("B", bound="MessageParams")
X = TypeVar("X", bound="RankMessages")
Y = TypeVar("Y")


@dataclass(frozen=True)
class MessageParams(Params):
    num_tokens: int = flag("rows of the message of a rank", default=64, letter="t", usual="", minimum=1, draw=(8, 34))
    hidden_size: int = flag("width of a row", default=4096, letter="h", usual="", minimum=8, draw=(128, 512), step=8)
    input_dtype: str = flag("type of the message", default="bfloat16", choices=HALF)
    num_gpus: int = flag(
        "processes that make the call together, each with a GPU", default=2, letter="g", usual="", minimum=2, draw=(2,)
    )

    @property
    def dtype(self) -> torch.dtype:
        return TORCH[self.input_dtype]

    @property
    def elements(self) -> int:
        return self.num_tokens * self.hidden_size


@dataclass
class RoutineOfRanks(Routine[B, Y]):
    """A routine whose call `num_gpus` processes make; `collective` is what they do, by the names of nccl-tests."""

    collective: str | None = None

    def ranks(self, p: B) -> int:
        return p.num_gpus


def rank() -> int:
    """The rank of this process; 0 where a call is only prepared."""
    here = joined.here()
    return 0 if here is None else here.rank


def group(p: MessageParams) -> Ranks:
    here = joined.here()
    if here is None or here.size != p.num_gpus:
        remedy = "its own test, which starts them" if here is None else f"--num_gpus {here.size}"
        raise CannotRunError(f"the call needs {p.num_gpus} processes that make it together: run it by {remedy}")
    return here


def of_all(p: MessageParams, rand: torch.Generator, device: torch.device) -> Tensor:
    """The tensors of all ranks."""
    shape = (p.num_gpus, p.num_tokens, p.hidden_size)
    return torch.randn(shape, generator=rand, device=device, dtype=torch.float32).to(p.dtype)


class RankMessages(Protocol):
    @property
    def of_all(self) -> Tensor: ...
    @property
    def input(self) -> Tensor: ...
    def _replace(self: X, *, of_all: Tensor, input: Tensor) -> X: ...  # noqa: A002, PYI019 - Python 3.10 has no Self


def built(launch: Callable[[X], object], x: X, options: LaunchOptions) -> Built[X]:
    """The call, which is given this rank's own message apart from the others'."""
    return Built(launch, options.backend, x._replace(of_all=x.of_all[:0], input=x.input.clone()))


def own_or_all(x: RankMessages) -> Tensor:
    """The messages that the check negates: all ranks' for the reference, this rank's own for its call."""
    return x.of_all if x.of_all.numel() else x.input


def of_sums(p: MessageParams) -> check.Tolerance:
    """The tolerance of sums: each of n - 1 additions may round to the message's type, in any order."""
    unit = torch.finfo(p.dtype).eps  # rounding is by half of it, of a partial sum as large as twice the row's rms
    return check.Tolerance(2 * unit, p.num_gpus * unit, unit / 2)


def on_gpus(_p: MessageParams, backend: str, device: Device) -> Iterator[str]:
    """Require GPUs, for backends of which no API of FlashInfer says it."""
    reason = capability.gpu(backend)(device)
    if reason:
        yield reason
