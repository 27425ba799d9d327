"""A stand-in for FlashInfer's exchange of tokens, over gloo: rows arrive in an order that each dispatch draws anew.

As in FlashInfer's kernel, where atomic counters decide. A combine reads rows in the order of the last dispatch, from
memory that all calls of a process share.
"""

import sys
from types import ModuleType, SimpleNamespace

import torch
import torch.distributed as dist


def _to_each(rows):
    """What the others sent to this rank: `rows` has a part for each of them."""
    got = torch.empty_like(rows)
    dist.all_to_all_single(got.view(torch.uint8), rows.view(torch.uint8))
    return got


def dispatch(experts, payloads, workspace, _metainfo, tokens, _rank, size, _top_k, num_experts):  # noqa: PLR0917 - its own
    homes = experts // (num_experts // size)
    goes = [(homes == there).any(-1).nonzero()[:, 0] for there in range(size)]
    workspace["order"] = [rows[torch.randperm(len(rows))] for rows in goes]
    got = []
    for payload in payloads:
        sent = payload.new_zeros(size, tokens, payload.shape[1])
        for there, rows in enumerate(workspace["order"]):
            sent[there, : len(rows)] = payload[rows]
        got.append(_to_each(sent))
    return got, 0, None


def combine(payload, tokens, workspace, _metainfo, _most, _rank, _size, _top_k, _offset, output):
    total = torch.zeros(tokens, payload.shape[-1])
    for rows, back in zip(workspace["order"], _to_each(payload), strict=True):
        total.index_add_(0, rows, back[: len(rows)].float())
    return output.copy_(total)


class MoeAlltoAll:
    def __init__(self, mapping, max_num_tokens, top_k, num_experts, **_):
        self.workspace, self.metainfo, self.num_experts = {}, None, num_experts
        self.where = (self.workspace, None, max_num_tokens, mapping.rank, mapping.world_size, top_k)

    def dispatch(self, experts, payloads, _tokens):
        return dispatch(experts, payloads, *self.where, self.num_experts)[0]

    def get_combine_payload_tensor_in_workspace(self, tokens, hidden_size, dtype):
        return torch.empty(self.where[4], tokens, hidden_size, dtype=dtype)

    def combine(self, payload, tokens, *, output, **_):
        return combine(payload, tokens, *self.where, 0, output)


def install():
    """As `flashinfer.comm` of this process."""
    comm = ModuleType("flashinfer.comm")
    comm.MoeAlltoAll, comm.Mapping = MoeAlltoAll, SimpleNamespace
    comm.moe_a2a_dispatch, comm.moe_a2a_combine = dispatch, combine
    mnnvl = ModuleType("flashinfer.comm.mnnvl")
    mnnvl.MnnvlConfig = mnnvl.TorchDistBackend = SimpleNamespace
    flashinfer = ModuleType("flashinfer")
    flashinfer.comm, comm.mnnvl = comm, mnnvl
    sys.modules.update({one.__name__: one for one in (flashinfer, comm, mnnvl)})
