"""Is the answer right: a call's outputs against the fp32 reference, with what is needed to see what went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pytest_flashinfer_perf import mismatch


@dataclass(frozen=True)
class Tolerance:
    """An element may differ by `rtol` of itself plus `atol` of its row's rms, a factor common to all by `scale`.

    The absolute part is relative to the reference's own size: attention over a long context gives small numbers, and
    a fixed 1e-2 would accept zeros for them. It is that of the row (the last dimension), since a causal prefill has
    rows of all contexts: what rounds the first ones is larger than the last ones are.

    Where kernels round on the way as nobody says, `matched` is the share of elements that must be within these bounds;
    the others may be out by BEYOND times as much, so that a row that is missing is still seen.

    A logarithm is off by the same wherever it lies: `absolute` is allowed on top.
    """

    rtol: float
    atol: float
    scale: float
    matched: float = 1.0
    absolute: float = 0.0


BEYOND = 4.0


# Bounds on rounding alone, for outputs of people's own kernels. A routine states its own.
BY_DTYPE = {
    torch.float64: Tolerance(1e-6, 1e-6, 1e-6),
    torch.float32: Tolerance(1e-3, 1e-3, 1e-3),
    torch.float16: Tolerance(5e-3, 1e-2, 2e-3),
    torch.bfloat16: Tolerance(1e-2, 2e-2, 5e-3),
    torch.float8_e4m3fn: Tolerance(8e-2, 8e-2, 2e-2),
    torch.float8_e5m2: Tolerance(2e-1, 2e-1, 4e-2),
}
EXACT = Tolerance(0.0, 0.0, 0.0)


class WrongAnswerError(AssertionError):
    """A call's output is not the reference's: it must not be recorded as a fast one."""


@dataclass(frozen=True)
class Worst:
    """The element that is furthest off, by one measure of that."""

    error: float
    where: tuple[int, ...]
    actual: float
    expected: float

    @property
    def sentence(self) -> str:
        return f"at {list(self.where)}: got {self.actual:.6g}, expected {self.expected:.6g}"


@dataclass(frozen=True)
class Check:
    """What a comparison saw; `rule` is empty where the answer is right, `report` has the rest where it is not."""

    rule: str
    absolute: Worst
    relative: Worst  # to the rms of its row
    matched: float
    report: tuple[str, ...] = ()

    @property
    def worst_abs(self) -> float:
        return self.absolute.error

    @property
    def worst_rel(self) -> float:
        return self.relative.error

    @property
    def sentence(self) -> str:
        return f"{self.rule}; {100 * self.matched:.4g} % of elements match, worst {self.absolute.sentence}"


NOTHING = Worst(0.0, (), 0.0, 0.0)
Locate = Callable[[int], tuple[int, ...]]


def compare(
    actual: Tensor, expected: Tensor, tolerance: Tolerance | None = None, locate: Locate | None = None
) -> Check:
    """`expected` is the reference, in fp32; the tolerance is the output dtype's where none is given.

    `locate` says where the nth element is, if these are some elements of an output.
    """
    if actual.shape != expected.shape:
        return _unlike(f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}")
    if actual.numel() == 0:
        return Check("", NOTHING, NOTHING, 1.0)
    allowed = tolerance or BY_DTYPE.get(actual.dtype, EXACT)
    wide = torch.float32 if actual.dtype.is_floating_point and actual.dtype.itemsize <= 4 else torch.float64
    got, want = actual.to(wide), expected.to(wide)
    error, size = (got - want).abs(), _row_rms(want)
    bound = allowed.atol * size + allowed.rtol * want.abs() + allowed.absolute
    matches = error <= bound
    rule = _strange(got, want) or _too_far(matches, error <= BEYOND * bound, allowed) or _scaled(got, want, allowed)
    where = locate or partial(index, shape=actual.shape)
    relative = error / size.clamp_min(1e-30)
    found = Check(rule, _worst(error, got, want, where), _worst(relative, got, want, where), _share(matches))
    return replace(found, report=mismatch.report(got, want, bound, relative)) if rule else found


def _worst(error: Tensor, got: Tensor, want: Tensor, where: Locate) -> Worst:
    at = int(error.nan_to_num(nan=math.inf).argmax())
    seen, actual, expected = (t.flatten()[at].item() for t in (error, got, want))
    return Worst(seen, where(at), actual, expected)


def _share(matches: Tensor) -> float:
    return matches.double().mean().item()


NARROW, FLOOR = 16, 0.25


def _row_rms(want: Tensor) -> Tensor:
    """A row of few elements may happen to have small ones alone: it is taken for no less than a part of all."""
    overall = want.square().mean().sqrt()
    if want.dim() < 2:
        return overall
    rows = want.square().mean(-1, keepdim=True).sqrt()
    return rows.maximum(FLOOR * overall) if want.shape[-1] < NARROW else rows


def _strange(got: Tensor, want: Tensor) -> str:
    strange = int((~got.isfinite() & want.isfinite()).sum())
    return f"{strange} elements are NaN or infinite" if strange else ""


def _too_far(matches: Tensor, near: Tensor, allowed: Tolerance) -> str:
    bound = f"rtol {allowed.rtol:g} + atol {allowed.atol:g} x rms of the row"
    bound += f" + {allowed.absolute:g}" if allowed.absolute else ""
    if allowed.matched < 1.0 and not bool(near.all()):
        return f"{int((~near).sum())} elements differ by more than {BEYOND:g} times {bound}"
    wrong = int((~matches).sum())
    if wrong > (1.0 - allowed.matched) * matches.numel():
        few = f", of which {100 * (1 - allowed.matched):g} % may" if allowed.matched < 1.0 else ""
        return f"{wrong} elements differ by more than {bound}{few}"
    return ""


def _scaled(got: Tensor, want: Tensor, allowed: Tolerance) -> str:
    factor = mismatch.common_factor(got, want)
    off = abs(factor - 1.0)
    is_more = off > allowed.scale and off * want.square().mean().sqrt().item() > allowed.absolute
    return f"every element is scaled by {factor:.4f}" if is_more else ""


def index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """As torch.unravel_index, whose first call imports sympy."""
    place: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        place.insert(0, at)
    return tuple(place)


def _unlike(what: str) -> Check:
    unknown = Worst(math.inf, (), math.nan, math.nan)
    return Check(what, unknown, unknown, 0.0)


def poison(outputs: tuple[Tensor, ...]) -> None:
    """Fill with what no kernel computes, so that an element nobody wrote is seen."""
    for out in outputs:
        if out.dtype.is_floating_point and out.dtype.itemsize == 1:
            out.view(torch.uint8).fill_(0x7F)
        elif out.dtype.is_floating_point:
            out.fill_(math.nan)
        elif out.dtype != torch.bool:
            out.fill_(torch.iinfo(out.dtype).max)
