"""Compare a call's outputs with the fp32 reference, and say in a sentence how they differ.

`compare` gives a `Check` for each output; mismatch.py adds the lines that explain it. `poison` fills outputs before a
call, and `within` chooses the rows to compare where a reference of all of them would take too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking import mismatch
from pytest_flashinfer_perf.errors import FlashinferPerfError


@dataclass(frozen=True)
class Tolerance:
    """An element may differ by `rtol` of itself plus `atol` of its row's rms, a factor common to all by `scale`.

    The absolute part is relative to the reference's own size: attention over a long context gives small numbers, and
    a fixed 1e-2 would accept zeros for them. It is that of the row (the last dimension), since a causal prefill has
    rows of all contexts: what rounds the first ones is larger than the last ones are.

    For kernels with undocumented intermediate rounding, `matched` is the share of elements that must be within these
    bounds; the others may be out by BEYOND times as much, so that a missing row is still found.

    `absolute` is allowed in addition, for outputs such as logarithms whose error does not depend on their size.
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
    torch.complex64: Tolerance(1e-3, 1e-3, 1e-3),
    torch.complex128: Tolerance(1e-6, 1e-6, 1e-6),
}
EXACT = Tolerance(0.0, 0.0, 0.0)


class WrongAnswerError(FlashinferPerfError, AssertionError):
    """A call's output is not the reference's: it must not be recorded as a fast one."""


@dataclass(frozen=True)
class Worst:
    """The element with the largest error, absolute or relative."""

    error: float
    where: tuple[int, ...]
    actual: complex
    expected: complex

    @property
    def sentence(self) -> str:
        return f"at {list(self.where)}: got {_digits(self.actual)}, expected {_digits(self.expected)}"


def _digits(value: complex) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


@dataclass(frozen=True)
class Check:
    """The result of a comparison. `rule` is the violated bound, empty if the answer is right; `report` tells more."""

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
        # Below 100 if a single element is wrong, however many there are.
        percent = 100 * self.matched if self.matched == 1 else min(100 * self.matched, 99.99)
        return f"{self.rule}; {percent:.4g} % of elements match, worst {self.absolute.sentence}"

    @property
    def lines(self) -> tuple[str, ...]:
        """All lines of the message; only the rule if the shape differs."""
        if self.absolute is UNKNOWN:
            return (self.rule,)
        worst = f"worst against the rms of its row, {self.worst_rel:.3g} times it, {self.relative.sentence}"
        return (self.sentence, worst, *self.report)


NOTHING = Worst(0.0, (), 0.0, 0.0)
UNKNOWN = Worst(math.inf, (), math.nan, math.nan)
Locate = Callable[[int], tuple[int, ...]]


def compare(
    actual: Tensor,
    expected: Tensor,
    tolerance: Tolerance | None = None,
    locate: Locate | None = None,
    *,
    poisoned: bool = True,
) -> Check:
    """`expected` is the reference, in fp32; the default tolerance is that of the output's dtype.

    If these are only some elements of an output, `locate` gives the index of the nth one in the output. NaN in an
    output that was not `poisoned` before the call was written by the call itself.
    """
    if actual.shape != expected.shape:
        rule = f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
        return Check(rule, UNKNOWN, UNKNOWN, 0.0)
    if actual.numel() == 0:
        return Check("", NOTHING, NOTHING, 1.0)
    allowed = tolerance or BY_DTYPE.get(actual.dtype, EXACT)
    got, want = _alike(actual, expected)
    same, finite = got == want, want.isfinite()
    apart = got - want
    error = (apart.double() if _is_integral(apart) else apart).abs().masked_fill_(same, 0.0)
    size = _row_rms(want, finite)
    solid, bare = _solid(want, finite), _solid(got, finite)
    bound = allowed.atol * size + allowed.rtol * solid.abs() + allowed.absolute
    matches = error <= bound
    rule = (
        _strange(got, want, same)
        or _too_far(matches, error <= BEYOND * bound, allowed)
        or _scaled(bare, solid, allowed)
    )
    where = locate or partial(index, shape=actual.shape)
    relative = error / size.clamp_min(1e-30)
    matched = matches.double().mean().item()
    result = Check(rule, _worst(error, got, want, where), _worst(relative, got, want, where), matched)
    if not rule:
        return result
    outputs = mismatch.Observed(got, bare, solid, bound, relative, ~matches)
    return replace(result, report=mismatch.report(outputs, poisoned=poisoned))


def _alike(actual: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Convert both to a type that holds the values of both; integers and complex numbers stay what they are."""
    whole = _is_integral(expected)
    if not whole and not expected.is_complex():
        whole = bool((expected.to(torch.int64).to(expected.dtype) == expected).all())
    if _is_integral(actual) and whole:
        return actual.to(torch.int64), expected.to(torch.int64)
    part = actual.dtype.itemsize / (2 if actual.is_complex() else 1)
    wide = torch.float64 if _is_integral(actual) or part > 4 else torch.float32
    if actual.is_complex() or expected.is_complex():
        wide = wide.to_complex()
    return actual.to(wide), expected.to(wide)


def _is_integral(values: Tensor) -> bool:
    return not (values.is_floating_point() or values.is_complex())


def _solid(values: Tensor, finite: Tensor) -> Tensor:
    """The values with zeros where the reference is not finite."""
    kept = values.double() if _is_integral(values) else values
    return kept if bool(finite.all()) else kept.masked_fill(~finite, 0.0)


def _worst(error: Tensor, got: Tensor, want: Tensor, where: Locate) -> Worst:
    at = int(error.nan_to_num(nan=math.inf).argmax())
    error_there, actual, expected = (t.flatten()[at].item() for t in (error, got, want))
    return Worst(error_there, where(at), actual, expected)


NARROW, FLOOR = 16, 0.25


def _row_rms(want: Tensor, finite: Tensor) -> Tensor:
    """The rms of each row; for narrow rows, which may hold small elements only, at least FLOOR times the output's."""
    squares = _solid(want, finite).abs().square()
    overall = (squares.sum() / finite.sum().clamp_min(1)).sqrt()
    if want.dim() < 2:
        return overall
    rows = (squares.sum(-1, keepdim=True) / finite.sum(-1, keepdim=True).clamp_min(1)).sqrt()
    return rows.maximum(FLOOR * overall) if want.shape[-1] < NARROW else rows


def _strange(got: Tensor, want: Tensor, same: Tensor) -> str:
    """Find NaN and infinities; an infinity is right if the reference has the same one."""
    unknown = int(want.isnan().sum())
    if unknown:
        return f"the reference has {unknown} NaN, so that no answer can be right"
    not_finite = int((~got.isfinite() & ~same).sum())
    return f"{_elements(not_finite, 'is', 'are')} NaN or infinite" if not_finite else ""


def _too_far(matches: Tensor, near: Tensor, allowed: Tolerance) -> str:
    bound = f"rtol {allowed.rtol:g} + atol {allowed.atol:g} x rms of the row"
    bound += f" + {allowed.absolute:g}" if allowed.absolute else ""
    if allowed.matched < 1.0 and not bool(near.all()):
        return f"{_elements(int((~near).sum()), 'differs', 'differ')} by more than {BEYOND:g} times {bound}"
    wrong = int((~matches).sum())
    if wrong and allowed == EXACT:
        return f"{_elements(wrong, 'differs', 'differ')} from the reference"
    if wrong > (1.0 - allowed.matched) * matches.numel():
        few = f", of which {100 * (1 - allowed.matched):g} % may" if allowed.matched < 1.0 else ""
        return f"{_elements(wrong, 'differs', 'differ')} by more than {bound}{few}"
    return ""


def _elements(number: int, one: str, many: str) -> str:
    return f"1 element {one}" if number == 1 else f"{number} elements {many}"


def _scaled(got: Tensor, want: Tensor, allowed: Tolerance) -> str:
    factor = mismatch.common_factor(got, want)
    off = abs(factor - 1.0)
    is_more = off > allowed.scale and off * want.abs().square().mean().sqrt().item() > allowed.absolute
    return f"every element is scaled by {factor:.4f}" if is_more else ""


def index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    """Like torch.unravel_index, whose first call imports sympy."""
    place: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        place.insert(0, at)
    return tuple(place)


def poison(outputs: tuple[Tensor, ...]) -> None:
    """Fill with values that no kernel computes, so that unwritten elements are found; a bool is inverted instead."""
    with torch.inference_mode():  # parameters and inference tensors cannot be filled elsewhere
        for out in outputs:
            if out.is_floating_point() and out.dtype.itemsize == 1:
                out.view(torch.uint8).fill_(0x7F)
            elif not _is_integral(out):
                out.fill_(math.nan)
            elif out.dtype == torch.bool:
                out.logical_not_()  # what was right before the last call is wrong before the next one
            else:
                out.fill_(torch.iinfo(out.dtype).max)


# Choose the rows of an answer to compare, if computing the reference for all rows would take too long.

# Floating-point operations that a reference may take, in fp32: about a second on a laptop, a tenth of one on a GPU.
BUDGET_CPU, BUDGET_GPU = 4e10, 4e12


@dataclass(frozen=True)
class Rows:
    """The number of rows of a routine's outputs, and the rows at which requests or groups begin and end."""

    count: int
    edges: Tensor


@dataclass(frozen=True)
class Sample:
    """The chosen rows, in ascending order."""

    chosen: Tensor
    count: int

    def of(self, output: Tensor, like: Tensor) -> Tensor:
        """The output's elements in the chosen rows, in the shape of `like`."""
        return output.reshape(self.count, -1)[self.chosen].reshape(like.shape)

    def locate(self, nth: int, output: Tensor) -> tuple[int, ...]:
        """The index in the output of the sample's nth element."""
        row, column = divmod(nth, output.numel() // self.count)
        flat = int(self.chosen[row]) * (output.numel() // self.count) + column
        return index(flat, output.shape)


def budget(*, on_gpu: bool) -> float:
    return BUDGET_GPU if on_gpu else BUDGET_CPU


def within(allowed: float, flops: float, rows: Rows, seed: int) -> Sample | None:
    """A sample of as many rows as the work permits, with the first and the last; None if that is all rows."""
    wanted = max(2, int(rows.count * min(1.0, allowed / flops))) if flops else rows.count
    if wanted >= rows.count:
        return None
    rand = torch.Generator().manual_seed(seed)
    edges = rows.edges.cpu()
    half = edges[torch.randperm(len(edges), generator=rand)[: wanted // 2]]
    ends = torch.tensor([0, rows.count - 1])
    others = torch.randint(rows.count, (wanted,), generator=rand)
    first_ones = dict.fromkeys(torch.cat([ends, half, others]).tolist())
    chosen = sorted(list(first_ones)[:wanted])
    return Sample(torch.tensor(chosen, device=rows.edges.device), rows.count)
