"""FP4, tiles of scales and shuffled rows as their bytes say it, by decoders that share nothing with the package."""

import torch


def fp4(values, scales, block):
    """The first value in the low half: sign, two bits of exponent, one of mantissa. Scales are e4m3, or exponents."""
    codes = torch.stack((values % 16, values // 16), -1).flatten(-2).long()
    magnitude = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)[codes % 8]
    unit = torch.exp2(scales.double() - 127) if scales.dtype == torch.uint8 else scales.double()
    return torch.where(codes < 8, magnitude, -magnitude) * unit.repeat_interleave(block, -1)


def in_tiles(flat, rows, columns, tile=128):
    """By the formula of a byte's place: tiles of 128 or 8 rows x 4 columns; of 128, rows 32 apart lie together."""
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    within = row % 32 * 16 + row % 128 // 32 * 4 if tile == 128 else row % tile * 4
    nth = row // tile * -(-columns // 4) + column // 4
    return flat.flatten()[nth * tile * 4 + within + column % 4]


def unshuffled(rows, block=32):
    """trtllm's order undone: row w x 8 + r of each block was its row r x block/8 + w."""
    blocks = rows.unflatten(-2, (-1, block // 8, 8))
    return blocks.transpose(-3, -2).flatten(-4, -2)
