"""What the GEMM routines have in common: a product in fp32, the tolerance of its outputs, a model's projections."""

from __future__ import annotations

from torch import Tensor

from pytest_flashinfer_perf.check import Tolerance
from pytest_flashinfer_perf.routine import Model

M = (1, 16, 64, 256, 1024, 4096, 8192)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m, k] times the transpose of b [..., n, k], of what the kernel really multiplies, in fp32."""
    return a.float() @ b.float().transpose(-1, -2)


def tolerance(out_dtype: str) -> Tolerance:
    """The library's tests allow 1e-2. Sums are fp32, so that it is the output's rounding that counts."""
    return Tolerance(2e-3, 5e-3, 1e-3) if out_dtype == "float16" else Tolerance(1e-2, 1e-2, 4e-3)


def projections(model: Model) -> list[Model]:
    """A model whose settled parameters are those of one projection, for each that it has."""
    return [Model(f"{model.name}-{name}", nk, model.dp) for name, nk in model.settles.items()]
