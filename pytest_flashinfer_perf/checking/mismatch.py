"""Describe a wrong answer: how far it is off, and whether a scale, transposition, shift or region explains it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

PERCENTILES = (0.5, 0.9, 0.99, 0.999)
SORTED_AT_MOST = 1 << 22  # elements, evenly taken
EXPLAINS = 0.99  # the share of elements that must match then
SHIFTS = (1, -1, 2, -2)


class Observed(NamedTuple):
    """An output, and how far each element is off; `got` and `want` are zero where the reference is not finite."""

    output: Tensor
    got: Tensor
    want: Tensor
    bound: Tensor
    relative: Tensor  # to the rms of its row
    wrong: Tensor


def report(outputs: Observed, *, poisoned: bool) -> tuple[str, ...]:
    """Lines about the differences. NaN in an output that was `poisoned` may be elements that the call did not write."""
    flat = outputs.relative.flatten()
    sample = flat[:: -(-len(flat) // SORTED_AT_MOST)].nan_to_num(nan=torch.inf).sort().values
    shares = (f"{100 * q:g} %: {sample[round(q * (len(sample) - 1))]:.3g}" for q in PERCENTILES)
    size, nan, infinite = outputs.output.numel(), int(outputs.output.isnan().sum()), int(outputs.output.isinf().sum())
    number = f"{nan} NaN, {infinite} infinite of {size} element{'s' * (size != 1)}"
    try:
        explanation = next(
            _explanations(outputs, poisoned=poisoned), "no scale, transposition, shift or region explains it"
        )
    except torch.OutOfMemoryError:
        explanation = "not explained: out of memory while looking for an explanation"
    return f"errors in units of their row's rms, {', '.join(shares)}", number, explanation


def _explanations(outputs: Observed, *, poisoned: bool) -> Iterator[str]:
    got, want, bound = outputs.got, outputs.want, outputs.bound

    def share(guess: Tensor, at_most: Tensor = bound) -> float:
        return ((got - guess).abs() <= at_most).double().mean().item()

    yield from _region(outputs, poisoned=poisoned)
    if outputs.wrong.double().mean().item() <= 1 - EXPLAINS:
        yield "only a few elements are wrong: no scale, transposition or shift explains it"
    factor = common_factor(got, want)
    if math.isfinite(factor) and f"{factor:.5g}" != "1" and share(factor * want, abs(factor) * bound) >= EXPLAINS:
        yield f"explained by a scale: everything is multiplied by {factor:.5g}"
    for first, second in itertools.combinations(range(want.dim()), 2):
        turned, allowed = (t.transpose(first, second).reshape(want.shape) for t in (want, bound))
        if share(turned, allowed) >= EXPLAINS:
            yield f"explained by a transposition: dimensions {first} and {second} are swapped"
    for dim, by in itertools.product(range(want.dim()), SHIFTS):
        if _is_shifted(got, want, bound, dim, by):
            yield f"explained by a shift: what belongs at i of dimension {dim} is at i{by:+}"


def _is_shifted(got: Tensor, want: Tensor, bound: Tensor, dim: int, by: int) -> bool:
    """Whether the output is shifted along a dimension; elements shifted in at its ends are ignored."""
    kept = want.shape[dim] - abs(by)
    if kept < 1:
        return False
    here, there = (t.narrow(dim, max(0, sign * by), kept) for t, sign in ((got, 1), (want, -1)))
    allowed = bound.narrow(dim, max(0, -by), kept)
    return ((here - there).abs() <= allowed).double().mean().item() >= EXPLAINS


def _region(outputs: Observed, *, poisoned: bool) -> Iterator[str]:
    """Whether all wrong elements are zero, or all are NaN, with which outputs are filled before the call."""
    nan = "NaN, as before the call: it was not written" if poisoned else "NaN"
    for name, holds in (("zero", outputs.output == 0), (nan, outputs.output.isnan())):
        if bool(outputs.wrong.any()) and bool(holds[outputs.wrong].all()):
            yield f"explained by a region, {_box(outputs.wrong)}, that is {name}"


def _box(wrong: Tensor) -> str:
    """The smallest slice that holds all wrong elements."""
    slices = []
    for dim, size in enumerate(wrong.shape):
        indices = wrong.movedim(dim, 0).reshape(size, -1).any(1).nonzero()
        start, stop = int(indices[0]), int(indices[-1]) + 1
        slices.append(":" if (start, stop) == (0, size) else f"{start}:{stop}")
    return f"[{', '.join(slices)}]"


def common_factor(got: Tensor, want: Tensor) -> float:
    """The factor that best explains the output: one number, so rounding averages out of it."""
    energy = want.abs().square().sum(dtype=torch.float64)
    return ((got * want.conj()).real.sum(dtype=torch.float64) / energy).item() if energy > 0 else 1.0
