"""What `make bench` measures without a GPU: a routine with two backends side by side, and a kernel of one's own."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from pytest_flashinfer_perf.spec import Built, Cost, Params, Routine, Tolerance, flag


@dataclass(frozen=True)
class Softmax(Params):
    rows: int = flag("rows of the input", letter="r", minimum=1)
    columns: int = flag("columns of the input", letter="c", minimum=1)


class Inputs(NamedTuple):
    x: torch.Tensor
    out: torch.Tensor


def inputs(p, rand, device):
    x = torch.randn(p.rows, p.columns, generator=rand, device=device)
    return Inputs(x, torch.empty_like(x))


softmax = Routine(
    "softmax",
    family="rows",
    params=Softmax,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=lambda p, x, rows=None: (torch.softmax(x.x.double(), -1),),
    cost=lambda p, x: Cost(5 * x.x.numel(), 2 * x.x.nbytes, "float32"),
    tolerances=lambda p, backend: (Tolerance(rtol=1e-4, atol=1e-7, scale=1e-6),),
    footprint=lambda p: 32 * p.rows * p.columns,
    cuda_graph=True,
    activations=lambda x: x.x,
)


@softmax.backend("torch")
def build(p, x, options):
    return Built(lambda x: torch.softmax(x.x, -1, out=x.out), "torch")


@softmax.backend("by-hand")
def build_by_hand(p, x, options):
    def launch(x):
        torch.exp(x.x - x.x.amax(-1, keepdim=True), out=x.out)
        x.out.div_(x.out.sum(-1, keepdim=True))

    return Built(launch, "by-hand")


SHAPES = [Softmax(rows=rows, columns=columns) for rows in (16, 64) for columns in (1024, 4096)]


@pytest.mark.perf_cases(softmax, *SHAPES)
def test_softmax(perf, case):
    perf(case)


@pytest.mark.parametrize("rows", [128, 256])
def test_rmsnorm(perf, rows):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(rows, 4096, device=device), torch.randn(4096, device=device)

    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight

    perf.time(
        norm,
        x,
        weight,
        flops=4 * x.numel(),
        bytes=2 * x.nbytes + weight.nbytes,
        reference=lambda x, weight: torch.nn.functional.rms_norm(x.double(), (4096,), weight.double(), 1e-6),
    )
