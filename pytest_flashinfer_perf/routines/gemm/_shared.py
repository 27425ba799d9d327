"""Shared by the GEMM routines: m, n, k, a product in fp32, tolerances of outputs; then the same for groups of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines._offsets import ChosenRows, edges, indptr, slices
from pytest_flashinfer_perf.spec import Built, Cost, Fault, LaunchOptions, Params, Routine, Tolerance, flag, tensors
from pytest_flashinfer_perf.spec.dtypes import FP8, HALF, bytes_of


@dataclass(frozen=True)
class Product(Params):
    """Activations [m, k] times weights [n, k], in both of which k lies together."""

    m: int = flag(
        "rows of the activations", letter="m", minimum=1, draw=(1, 4, 24, 130), most=2048, tiles=(16, 64, 128)
    )
    n: int = flag(
        "rows of the weights", letter="n", minimum=1, draw=(16, 128, 208), most=8192, tiles=(64, 128, 256), step=16
    )
    k: int = flag(
        "columns of both", letter="k", minimum=1, draw=(128, 256, 384), most=8192, tiles=(32, 64, 128), step=16
    )
    out_dtype: str = flag("type of the output", default=HALF[0], letter="o", choices=HALF)


@dataclass(frozen=True)
class Batched(Params):
    """`batch_size` products, each with operands of its own."""

    batch_size: int = flag("products", default=1, letter="b", minimum=1, draw=(1, 3), most=16)


@dataclass(frozen=True)
class Fp8Product(Product):
    """Both operands are stored in FP8."""

    input_dtype: str = flag("type of the activations", default=FP8[0], letter="a", choices=FP8)
    mat2_dtype: str = flag("type of the weights", default=FP8[0], letter="b", choices=FP8)


def fp8_type_limits(p: Fp8Product, backend: str) -> Iterator[str]:
    types = (p.input_dtype, p.mat2_dtype)
    if backend in ("cutlass", "trtllm_low_latency") and FP8[1] in types:
        yield f"{backend} multiplies {FP8[0]} only: use cublas"
    if backend == "cublas" and types == (FP8[1], FP8[1]):
        yield f"cublas multiplies {FP8[1]} by {FP8[0]} only"


def fp8_size_limits(p: Fp8Product, backend: str) -> Iterator[str]:
    if p.n % 16 or p.k % 16:
        yield f"{backend} needs n and k in multiples of 16, not {p.n} and {p.k}"


def out_dtype_or_float32() -> Any:
    return flag("type of the output", default=HALF[0], letter="o", choices=(*HALF, "float32"))


class Operands(NamedTuple):
    """The operands [..., m, k] and [..., n, k] of a call, the factor of the product, and the bias."""

    a: Tensor
    b: Tensor
    factor: Tensor | None = None
    bias: Tensor | None = None

    def product(self) -> Tensor:
        products: Tensor = self.a.float() @ self.b.float().mT
        products = products if self.factor is None else products * self.factor
        return products if self.bias is None else products + self.bias.float()

    def of_each(self, parts: list[slice], rows: Tensor | None = None) -> Iterator[tuple[slice, Operands]]:
        """The part of all rows of `a` that each of `b` multiplies; of a sample, those that have some of it."""
        chosen, a = ChosenRows(rows), self.a.flatten(0, -2)
        for part, b in zip(parts, self.b.flatten(0, -3) if self.b.dim() > 2 else self.b[None], strict=True):
            of_part = a[part][chosen.of(part)]
            if rows is None or len(of_part):
                yield part, self._replace(a=of_part, b=b)

    @property
    def parts(self) -> list[slice]:
        """The product if all groups have the same number of rows."""
        m = self.a.shape[-2]
        return [slice(i * m, (i + 1) * m) for i in range(self.b[..., 0, 0].numel())]


class GemmInputs(Protocol):
    """A routine's tensors: among them the activations, as they are stored, and the output."""

    @property
    def a(self) -> Tensor: ...
    @property
    def out(self) -> Tensor: ...


P = TypeVar("P", bound=Product)
X = TypeVar("X", bound=GemmInputs)


def routine(
    name: str,
    params: type[P],
    inputs: Callable[[P, torch.Generator, torch.device], X],
    operands: Callable[[P, X], Operands],
    dtype: str,
) -> Routine[P, X]:
    """Dense products, with a torch backend: `operands` are dequantised, and every tensor is read or written once."""
    declared = Routine(
        name,
        family="gemm",
        params=params,
        inputs=inputs,
        outputs=lambda x: (x.out,),
        reference=partial(_reference, operands),
        cost=lambda p, x: Cost(2 * x.out.numel() * p.k, sum(t.nbytes for t in tensors(x)), dtype),
        tolerances=lambda p, backend: (tolerance(p, backend, dtype),),
        footprint=lambda p: footprint(p, p.batch_size if isinstance(p, Batched) else 1),
        cuda_graph=True,
        rows=lambda p, x: edges(torch.arange(0, x.out.numel() // p.n + 1, p.m, device=x.out.device)),
        activations=lambda x: x.a,
    )
    declared.backend("torch")(lambda p, _x, _options: Built(lambda x: by_torch(x.out, operands(p, x)), "torch"))
    return declared


def _reference(operands: Callable[[P, X], Operands], p: P, x: X, rows: Tensor | None = None) -> tuple[Tensor]:
    of_all = operands(p, x)
    if rows is None:
        return (of_all.product(),)
    return (torch.cat([of_part.product() for _, of_part in of_all.of_each(of_all.parts, rows)]),)


# Quantising stretches values to fill their type (NVFP4 to 6 * 448, here dequantised); divided by this they are near 1,
# where float16 neither overflows nor has a row of small products among its subnormal numbers.
STRETCHED = {torch.float8_e4m3fn: 2.0**7, torch.float8_e5m2: 2.0**14, torch.float32: 2.0**9}


def by_torch(out: Tensor, operands: Operands) -> None:
    """Multiply in the output's type, which represents the operands exactly."""
    a, b = operands.a.to(out.dtype), operands.b.to(out.dtype).mT
    if operands.factor is None:
        torch.matmul(a, b, out=out)
    else:
        by_a, by_b = STRETCHED[operands.a.dtype], STRETCHED[operands.b.dtype]
        torch.matmul(a / by_a, b / by_b, out=out)
        out *= operands.factor.reshape(1) * (by_a * by_b)  # not 0-d, which would be rounded to the output's type
    if operands.bias is not None:
        out += operands.bias


def tolerance(p: Product, backend: str, dtype: str) -> Tolerance:
    """The library's tests allow 1e-2. Sums are fp32, so that it is the output's rounding that counts."""
    exact = {
        "bfloat16": Tolerance(1e-2, 1e-2, 4e-3),
        "float16": Tolerance(2e-3, 5e-3, 1e-3),
        "float32": Tolerance(1e-3, 2e-3, 5e-4),
    }[p.out_dtype]
    if dtype != FP8[0] or backend not in ("cublas", "auto"):
        return exact
    # FlashInfer has cuBLAS sum FP8 products in the tensor cores' own 14 bits (FAST_ACCUM), which cut off with every 32
    # columns, always towards zero: on an H200 that takes an atol of 0.011 at k = 7168, of 0.082 at 53248, where all
    # elements together are too small by 0.13 %.
    return Tolerance(1e-2, exact.atol + 2.5e-6 * p.k, 4e-3)


def footprint(p: Product, products: int = 1) -> int:
    """Operands in fp32, scaled and stored, one at a time; both again for the reference; the output and its check."""
    operands = 13 * max(p.m, p.n) * p.k + 6 * (p.m + p.n) * p.k
    return products * (operands + (bytes_of(p.out_dtype) + 24) * p.m * p.n)


def drawn(rand: torch.Generator, *shape: int) -> Tensor:
    """Values whose product over the last dimension has elements near 1."""
    return torch.randn(shape, device=rand.device, generator=rand) / math.sqrt(math.sqrt(shape[-1]))


def auto_limits(backend: str, device: Device) -> Iterator[str]:
    """The bfloat16 routines' `auto` asks for the DSL of backends that it may not even have on this GPU."""
    missing = capability.package("cutlass", "nvidia-cutlass-dsl", "auto")(device)
    if backend == "auto" and missing:
        yield missing


# Products for groups of rows, each group with weights of its own.


@dataclass(frozen=True)
class Groups(Params):
    group_size: int = flag("groups", default=1, letter="g", minimum=1, draw=(1, 2, 5), most=16)
    ragged: bool = flag("draw the rows of each group from 0 to m", default=False, letter="ragged")


@dataclass(frozen=True)
class GroupedParams(Product, Groups):
    """`m` is the number of rows of each group. With `ragged` it is the largest one, and the first group is empty."""

    row_step: ClassVar[int] = 1  # groups may start at its multiples

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), "m": -(-drawn["m"] // cls.row_step) * cls.row_step}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.m % self.row_step:
            yield "m", f"{self.m} is not a multiple of {self.row_step}, as rows of a group must be"


class GroupedInputs(GemmInputs, Protocol):
    """The rows of all groups, all groups' weights, where each group starts, the output."""

    @property
    def weights(self) -> tuple[Tensor, ...]: ...
    @property
    def m_indptr(self) -> Tensor: ...


G = TypeVar("G", bound=GroupedParams)
Y = TypeVar("Y", bound=GroupedInputs)


def starts(p: GroupedParams, rand: torch.Generator) -> Tensor:
    """The first row of each group, and the end of the last one."""
    if not p.ragged:
        return indptr(torch.full((p.group_size,), p.m, device=rand.device))
    rows = torch.randint(0, p.m // p.row_step + 1, (p.group_size,), device=rand.device, generator=rand) * p.row_step
    rows[0], rows[-1] = (0, p.m) if p.group_size > 1 else (p.m, p.m)
    return indptr(rows)


def grouped_routine(
    name: str,
    params: type[G],
    inputs: Callable[[G, torch.Generator, torch.device], Y],
    operands: Callable[[G, Y], Operands],
    dtype: str,
) -> Routine[G, Y]:
    """Like a dense routine, with operands of all rows [rows, k] and all weights [groups, n, k]."""
    declared = routine(name, params, inputs, operands, dtype)
    declared.rows = lambda _p, x: edges(x.m_indptr)
    declared.cost = lambda p, x: Cost(2 * x.out.numel() * p.k, _bytes(x), dtype)
    declared.footprint = lambda p: footprint(p, p.group_size)

    def reference(p: G, x: Y, rows: Tensor | None = None) -> tuple[Tensor]:
        of_groups = operands(p, x).of_each(slices(x.m_indptr), rows)
        return (torch.cat([of_group.product() for _, of_group in of_groups]),)

    @declared.backend("torch")
    def _torch(p: G, x: Y, _options: LaunchOptions) -> Built[Y]:
        groups = slices(x.m_indptr)  # on the host before anything is captured

        def launch(x: Y) -> None:
            for rows, of_group in operands(p, x).of_each(groups):
                by_torch(x.out[rows], of_group)

        return Built(launch, "torch")

    declared.reference = reference
    return declared


def _bytes(x: GroupedInputs) -> int:
    """Everything once; of the weights those of groups that have rows."""
    empty = int((x.m_indptr.diff() == 0).sum())
    unused = sum(t[0].nbytes for t in x.weights) * empty
    return sum(t.nbytes for t in tensors(x)) - unused
