"""mm_fp4: a product in NVFP4 or MXFP4, e2m1 with a scale for each 16 or 32 columns of a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Operands, Product
from pytest_flashinfer_perf.spec import Built, Fault, LaunchOptions, autotune, flag
from pytest_flashinfer_perf.spec.dtypes import TORCH

API = "gemm.mm_fp4"
NVFP4_ONLY = ("trtllm", "cutlass", "cake")
BACKENDS = ("cudnn", "cutlass", "trtllm", "cute-dsl", "cutedsl_low_latency", "b12x", "cake", "auto")


@dataclass(frozen=True)
class MmFp4(Product):
    """NVFP4, as upstream documents this routine, whose script asks for it since it also knows MXFP4; scales in tiles of
    8 x 4, which trtllm alone takes.
    """

    ignores: ClassVar[tuple[str, ...]] = ("use_nvfp4",)

    use_128x4_sf_layout: bool = flag("scales in tiles of 128 x 4, not 8 x 4", default=False, letter="128x4")
    use_mxfp4: bool = flag("MXFP4, not NVFP4", default=False, letter="mxfp4")
    enable_pdl: bool = flag("programmatic dependent launch", default=False, letter="pdl")
    autotune: bool = autotune()

    @property
    def use_nvfp4(self) -> bool:
        return not self.use_mxfp4

    @property
    def block(self) -> int:
        return _narrow.NV_BLOCK if self.use_nvfp4 else _narrow.MX_BLOCK

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), "k": -(-drawn["k"] // _narrow.MX_BLOCK) * _narrow.MX_BLOCK}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.k % _narrow.MX_BLOCK:
            yield "k", f"{self.k} is not a multiple of {_narrow.MX_BLOCK}"


class MmFp4Inputs(NamedTuple):
    """Scales are drawn in linear order, and passed to backends in tiles by rows and columns of the operands."""

    a: Tensor  # [m, k / 2]
    b: Tensor  # [n, k / 2]: a call gets its transposed view, as of its scales
    a_scale: Tensor  # [m, k / block]
    b_scale: Tensor  # [n, k / block]
    alpha: Tensor | None  # the unit of both scales; MXFP4 has none
    out: Tensor


def inputs(p: MmFp4, rand: torch.Generator, device: torch.device) -> MmFp4Inputs:
    a, b = (_drawn(p, rand, rows) for rows in (p.m, p.n))
    alpha = torch.tensor([a.factor * b.factor], device=device) if p.use_nvfp4 else None
    out = torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device)
    return MmFp4Inputs(a.values, b.values, a.scales, b.scales, alpha, out)


def _drawn(p: MmFp4, rand: torch.Generator, rows: int) -> _narrow.Blocked:
    """Blocks differ in size, or a wrong scale would not be seen."""
    sizes = torch.randint(-2, 3, (rows, p.k // _narrow.MX_BLOCK), device=rand.device, generator=rand).float().exp2()
    x = _shared.drawn(rand, rows, p.k) * sizes.repeat_interleave(_narrow.MX_BLOCK, 1)
    return _narrow.nvfp4(x, _narrow.nvfp4_global_scale(x)) if p.use_nvfp4 else _narrow.mxfp4(x)


def _operands(p: MmFp4, x: MmFp4Inputs) -> Operands:
    a, b = _narrow.Blocked(x.a, x.a_scale, p.block), _narrow.Blocked(x.b, x.b_scale, p.block)
    return Operands(a.dequantised(), b.dequantised(), x.alpha)


mm_fp4 = _shared.routine("mm_fp4", MmFp4, inputs, _operands, "fp4")


def _limits(p: MmFp4, backend: str, _device: Device) -> Iterator[str]:
    if backend != "trtllm" and not p.use_128x4_sf_layout:
        yield f"{backend} takes scales in tiles of 128 x 4: set use_128x4_sf_layout"
    if backend in NVFP4_ONLY and not p.use_nvfp4:
        yield f"{backend} multiplies NVFP4 only: leave out use_mxfp4, or use cudnn"
    if backend == "trtllm" and p.out_dtype != "bfloat16":
        yield "trtllm writes bfloat16 only: use cudnn"
    if backend == "trtllm" and p.n % 128:
        yield f"trtllm needs an n that is a multiple of 128, not {p.n}"
    if backend == "cutedsl_low_latency" and (p.m > 8 or p.k % (4 * p.block)):
        yield f"{backend} needs an m of at most 8 and a k in multiples of {4 * p.block}, not {p.m} and {p.k}"
    if backend == "cake" and (p.n % 8 or p.k % 256):
        yield f"cake needs an n in multiples of 8 and a k in multiples of 256, not {p.n} and {p.k}"
    if backend == "cute-dsl" and p.n % 8:
        yield f"cute-dsl needs an n in multiples of 8, not {p.n}"
    if p.autotune and backend == "cake":
        yield "cake is not tuned by --autotune: leave it out"


@mm_fp4.backend(*BACKENDS, api=API, limits=_limits, tunes=True)
def _mm(p: MmFp4, x: MmFp4Inputs, options: LaunchOptions) -> Built[MmFp4Inputs]:
    from flashinfer.gemm import mm_fp4

    keywords = {
        "block_size": p.block,
        "use_8x4_sf_layout": not p.use_128x4_sf_layout,
        "use_nvfp4": p.use_nvfp4,
        "enable_pdl": p.enable_pdl,
        "backend": options.backend,
    }
    out_dtype = TORCH[p.out_dtype]

    def launch(x: MmFp4Inputs) -> object:
        return mm_fp4(x.a, x.b.mT, x.a_scale, x.b_scale.mT, x.alpha, out_dtype, x.out, **keywords)

    return Built(launch, options.backend, _takes(p, x, options.backend))


def _takes(p: MmFp4, x: MmFp4Inputs, backend: str) -> MmFp4Inputs:
    in_tiles = _narrow.swizzled_128x4 if p.use_128x4_sf_layout else _narrow.swizzled_8x4
    b, b_scale = x.b, x.b_scale
    if backend == "trtllm":
        b, b_scale = _narrow.shuffled_rows(b), _narrow.shuffled_rows(b_scale.view(torch.uint8)).view(b_scale.dtype)
    alpha = x.alpha
    if alpha is None and backend in ("cute-dsl", "b12x"):  # which want one for MXFP4 too
        alpha = torch.ones(1, device=x.a.device)
    elif alpha is not None and backend == "cake":  # which wants one for each row
        alpha = alpha.repeat(p.m)
    return MmFp4Inputs(x.a, b, in_tiles(x.a_scale), _narrow.swizzled_128x4(b_scale), alpha, x.out)


TILED = {"use_128x4_sf_layout": True}

_tiers.smoke(
    mm_fp4,
    MmFp4(m=16, n=256, k=512),
    {"use_mxfp4": True},
    TILED,
    {**TILED, "use_mxfp4": True},
    {**TILED, "m": 1},
    {**TILED, "n": 208, "k": 288},
    {**TILED, "out_dtype": "float16"},
    {**TILED, "enable_pdl": True},
    {**TILED, "autotune": True},
)
_tiers.of_models(mm_fp4, TILED, {"use_mxfp4": True}, {"autotune": True}, {"use_128x4_sf_layout": False})
