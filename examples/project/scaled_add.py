"""A routine of one's own: out = a + scale * b in bfloat16, by torch. `conftest.py` registers its family's marker."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from pytest_flashinfer_perf.spec import Built, Cost, Params, Routine, Tolerance, flag, tensors


@dataclass(frozen=True)
class ScaledAdd(Params):
    rows: int = flag("rows of each tensor", letter="r", minimum=1)
    columns: int = flag("columns of each tensor", letter="c", minimum=1)
    scale: float = flag("of the second tensor", default=0.5, letter="s")


class Inputs(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor


def inputs(p, rand, device):
    a, b = (torch.randn(p.rows, p.columns, generator=rand, device=device).bfloat16() for _ in range(2))
    return Inputs(a, b, torch.empty_like(a))


def reference(p, x, rows=None):
    return (x.a.float() + p.scale * x.b.float(),)


scaled_add = Routine(
    "scaled_add",
    family="elementwise",
    params=ScaledAdd,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=lambda p, x: Cost(2 * p.rows * p.columns, sum(tensor.nbytes for tensor in tensors(x)), "float32"),
    tolerances=lambda p, backend: (Tolerance(rtol=2**-7, atol=2**-8, scale=2**-8),),
    footprint=lambda p: 16 * p.rows * p.columns,  # three tensors, the answer in fp32 and what it is made of
    cuda_graph=True,
    activations=lambda x: x.a,
)


@scaled_add.backend("torch")
def build(p, x, options):
    return Built(lambda x: torch.add(x.a, x.b, alpha=p.scale, out=x.out), "torch")
