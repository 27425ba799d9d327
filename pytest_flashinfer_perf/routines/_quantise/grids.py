"""Number formats for which torch has no arithmetic: e2m1, two per byte, and ue8m0, a power of two."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = E2M1[-1]
UE8M0_BIAS = 127


def _just_above(x: float) -> float:
    return float(torch.nextafter(torch.tensor(x), torch.tensor(math.inf)))


# Half way between neighbours the even code wins: from these on, magnitudes round up to the next code.
_FROM = (_just_above(0.25), 0.75, _just_above(1.25), 1.75, _just_above(2.5), 3.5, _just_above(5.0))


def to_e2m1(x: Tensor) -> Tensor:
    """Codes 0 to 15 of the nearest values, ties to even, saturated; the sign is the highest bit."""
    magnitude = torch.bucketize(x.float().abs(), _kept(_FROM, x.device), right=True)
    return (magnitude | (torch.signbit(x).long() << 3)).to(torch.uint8)


def from_e2m1(codes: Tensor) -> Tensor:
    return _kept((*E2M1, *(-value for value in E2M1)), codes.device)[codes.long()]


@functools.cache
def _kept(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept on the device: nothing is copied to it while a CUDA graph is captured."""
    return torch.tensor(values, device=device)


def packed(codes: Tensor) -> Tensor:
    """Two to a byte along the last dimension, the first in the low half."""
    pairs: Tensor = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpacked(pairs: Tensor) -> Tensor:
    return torch.stack((pairs & 0xF, pairs >> 4), -1).flatten(-2)


def to_ue8m0(x: Tensor) -> Tensor:
    """The power of two that is not below x, as its biased exponent; the smallest for zero."""
    mantissa, exponent = torch.frexp(x.float())
    at_least = exponent - (mantissa == 0.5).int()
    biased = torch.where(x > 0, at_least + UE8M0_BIAS, torch.zeros_like(at_least))
    return biased.clamp(0, 254).to(torch.uint8)


def from_ue8m0(exponents: Tensor) -> Tensor:
    """Exactly: the bits of the fp32 number, whose smallest power of two here is subnormal."""
    bits = exponents.int() << 23
    return torch.where(exponents > 0, bits, 1 << 22).view(torch.float32)
