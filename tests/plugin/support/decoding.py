"""FP4 as its bytes say it, by a decoder that shares nothing with the quantisers."""

import torch


def fp4(values, scales, block):
    """The first value in the low half: sign, two bits of exponent, one of mantissa. Scales are e4m3, or exponents."""
    codes = torch.stack((values % 16, values // 16), -1).flatten(-2).long()
    magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[codes % 8]
    unit = torch.exp2(scales.double() - 127) if scales.dtype == torch.uint8 else scales.double()
    return torch.where(codes < 8, magnitude, -magnitude) * unit.repeat_interleave(block, -1)
