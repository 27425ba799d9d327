"""ulysses_all_to_all: attention over a sequence that ranks share, which changes what each of them holds.

Before attention a rank has all heads of its tokens and gets its heads of all tokens (`scatter_heads`); after it the
other way round (`gather_heads`). One message is one of queries, keys, values or the output of a sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import check
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import Between, RoutineOfRanks
from pytest_flashinfer_perf.spec.params import Fault, flag
from pytest_flashinfer_perf.spec.routine import Built, CannotRunError, Cost, LaunchOptions, Shape

SCATTER, GATHER = "scatter_heads", "gather_heads"


@dataclass(frozen=True)
class Ulysses(Between):
    """`num_tokens` are those of a rank, and `hidden_size` is of all heads."""

    num_qo_heads: int = flag("heads of a token, on all ranks together", letter="q", minimum=1, draw=(4, 8), default=32)
    phase: str = flag("which way is timed", default=SCATTER, choices=(SCATTER, GATHER))

    def faults(self) -> Iterator[Fault]:
        if self.num_qo_heads % self.num_gpus:
            yield "num_qo_heads", f"{self.num_qo_heads} cannot be divided among {self.num_gpus} ranks"
        if self.hidden_size % self.num_qo_heads:
            yield "hidden_size", f"{self.hidden_size} is not a number of columns for {self.num_qo_heads} heads each"

    @property
    def parted(self) -> tuple[int, int, int, int, int]:
        """The whole tensor's shape: whose tokens, which of them, whose heads, which of them, columns."""
        own = self.num_qo_heads // self.num_gpus
        return self.num_gpus, self.num_tokens, self.num_gpus, own, self.hidden_size // self.num_qo_heads


class UlyssesInputs(NamedTuple):
    of_all: Tensor  # as `parted` has it
    input: Tensor  # [1, tokens, heads, head_dim]


def inputs(p: Ulysses, rand: torch.Generator, device: torch.device) -> UlyssesInputs:
    whole = _shared.of_all(p, rand, device, p.num_tokens).view(p.parted)
    return UlyssesInputs(whole, _of_heads(whole) if p.phase == GATHER else _of_tokens(whole))


def _of_tokens(whole: Tensor) -> Tensor:
    """This rank's tokens with all heads."""
    return whole[_shared.rank()].flatten(1, 2)[None].contiguous()


def _of_heads(whole: Tensor) -> Tensor:
    """All tokens with this rank's heads."""
    return whole[:, :, _shared.rank()].flatten(0, 1)[None].contiguous()


def reference(p: Ulysses, x: UlyssesInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    whole = x.of_all.float()
    return (_of_tokens(whole) if p.phase == GATHER else _of_heads(whole),)


ulysses_all_to_all: RoutineOfRanks[Ulysses, UlyssesInputs] = RoutineOfRanks(
    name="ulysses_all_to_all",
    family="comm",
    params=Ulysses,
    inputs=inputs,
    outputs=lambda _x: (),  # FlashInfer 0.6.18 takes none: what the call returns is checked
    reference=reference,
    cost=lambda p, x: Cost(0.0, p.elements * x.input.itemsize, "float32"),
    tolerances=lambda _p, _backend: (check.EXACT,),
    footprint=lambda p: p.elements * (8 * p.num_gpus + 8),
    cuda_graph=False,
    activations=_shared.own_or_all,
    collective="all_to_all",
)


@ulysses_all_to_all.backend("torch")
def _torch(p: Ulysses, x: UlyssesInputs, options: LaunchOptions) -> Built[UlyssesInputs]:
    """The default group of torch.distributed: gloo on a CPU."""
    _shared.group(p)
    ranks, tokens, _, heads, columns = p.parted

    def scattered(x: Tensor) -> Tensor:
        got = _exchanged(x.view(tokens, ranks, heads, columns).transpose(0, 1))
        return got.reshape(1, ranks * tokens, heads, columns)

    def gathered(x: Tensor) -> Tensor:
        got = _exchanged(x.view(ranks, tokens, heads, columns))
        return got.transpose(0, 1).reshape(1, tokens, ranks * heads, columns)

    exchange = gathered if p.phase == GATHER else scattered
    return _shared.built(lambda x: (exchange(x.input),), x, options)


def _exchanged(parts: Tensor) -> Tensor:
    """One part of each rank's for this one, in the order of the ranks."""
    given = parts.contiguous()
    got = torch.empty_like(given)
    dist.all_to_all_single(got, given)
    return got


@ulysses_all_to_all.backend("nccl", api="comm.UlyssesCommunicator", limits=_shared.on_gpus)
@ulysses_all_to_all.backend(
    "nvlink",
    api="comm.UlyssesCommunicator",
    runs_as="ulysses-nvlink",
    limits=_shared.of_a_mesh,
    modules=("jit.comm.gen_ulysses_a2a_module", "jit.comm.gen_vllm_comm_module"),
)
def _flashinfers(p: Ulysses, x: UlyssesInputs, options: LaunchOptions) -> Built[UlyssesInputs]:
    """Both by FlashInfer's communicator, whose own kernel writes into the other ranks' memory."""
    _shared.group(p)
    exchange = getattr(_communicator(p.elements, p.dtype, options.backend), p.phase)
    return _shared.built(lambda x: (exchange(x.input),), x, options)


@functools.cache
def _communicator(elements: int, dtype: torch.dtype, backend: str) -> Any:
    """Made once in a process, which is a rank of one case: all placements use its buffers."""
    from flashinfer import comm

    try:
        return comm.UlyssesCommunicator(max_elems=elements, dtype=dtype, backend=backend)
    except comm.UlyssesBackendError as error:  # of GPUs that no NVLink joins, on all ranks alike
        raise CannotRunError(str(error)) from error


SMALL = Ulysses(num_tokens=16, hidden_size=512, num_qo_heads=8)


@ulysses_all_to_all.tier("smoke")
def _smoke() -> Iterator[Shape[Ulysses]]:
    yield from (Shape(replace(SMALL, phase=phase)) for phase in (SCATTER, GATHER))


@ulysses_all_to_all.tier("default")
def _default() -> Iterator[Shape[Ulysses]]:
    """Video models' sequences: 24 heads of 128 columns."""
    for tokens in (1024, 16384):
        whole = Ulysses(num_tokens=tokens, hidden_size=3072, num_qo_heads=24)
        yield from (Shape(replace(whole, phase=phase)) for phase in (SCATTER, GATHER))
