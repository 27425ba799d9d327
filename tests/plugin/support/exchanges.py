"""A stand-in for FlashInfer's exchange of tokens, over gloo: rows arrive in an order that each dispatch draws anew.

As in FlashInfer's kernel, where atomic counters decide. A combine reads rows in the order of the last dispatch, from
memory that all calls of a process share.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
import torch.distributed as dist


def _to_each(rows):
    """What the others sent to this rank: `rows` has a part for each of them."""
    got = torch.empty_like(rows)
    dist.all_to_all_single(got.view(torch.uint8), rows.view(torch.uint8))
    return got


class MoeAlltoAll:
    order: ClassVar[list] = []  # of the last dispatch of a process, whichever call made it

    def __init__(self, mapping, num_experts, **_):
        self.size, self.num_experts = mapping.world_size, num_experts

    def dispatch(self, experts, payloads, tokens):
        homes = experts // (self.num_experts // self.size)
        goes = [(homes == there).any(-1).nonzero()[:, 0] for there in range(self.size)]
        self.order[:] = [rows[torch.randperm(len(rows))] for rows in goes]
        got = []
        for payload in payloads:
            sent = payload.new_zeros(self.size, tokens, payload.shape[1])
            for there, rows in enumerate(self.order):
                sent[there, : len(rows)] = payload[rows]
            got.append(_to_each(sent))
        return got

    def get_combine_payload_tensor_in_workspace(self, tokens, hidden_size, dtype):
        return torch.empty(self.size, tokens, hidden_size, dtype=dtype)

    def combine(self, payload, tokens, *, output, **_):
        total = torch.zeros(tokens, payload.shape[-1])
        for rows, back in zip(self.order, _to_each(payload), strict=True):
            total.index_add_(0, rows, back[: len(rows)].float())
        output.copy_(total)


def install():
    """As `flashinfer.comm` of this process."""
    comm = ModuleType("flashinfer.comm")
    comm.MoeAlltoAll, comm.Mapping = MoeAlltoAll, SimpleNamespace
    mnnvl = ModuleType("flashinfer.comm.mnnvl")
    mnnvl.MnnvlConfig = mnnvl.TorchDistBackend = SimpleNamespace
    flashinfer = ModuleType("flashinfer")
    flashinfer.comm, comm.mnnvl = comm, mnnvl
    sys.modules.update({one.__name__: one for one in (flashinfer, comm, mnnvl)})
