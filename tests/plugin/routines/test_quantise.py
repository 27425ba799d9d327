"""Quantisers, read again bit by bit by decoders that share nothing with them: plain Python on integers."""

import itertools
import math

import pytest
import torch
from decoding import in_tiles, unshuffled
from drawing import few
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.routines import _narrow


def e2m1(code):
    """Sign, two exponent bits with bias 1, one mantissa bit; subnormal where the exponent is 0."""
    sign, exponent, mantissa = -1.0 if code & 8 else 1.0, (code >> 1) & 3, code & 1
    return sign * (mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2))


def e4m3(byte):
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, (byte >> 3) & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa / 8 * 2.0**-6 if exponent == 0 else 2.0 ** (exponent - 7) * (1 + mantissa / 8))


def bits(t):
    return t.contiguous().view(torch.uint8)


def nearest_even(x, values):
    """The code of the value nearest to x; of two as near, the even one."""
    x = min(abs(x), values[-1])
    return min(range(len(values)), key=lambda code: (abs(values[code] - x), code & 1))


finite = st.floats(-1e4, 1e4, width=32)


@few(60)
@given(st.lists(finite, min_size=1))
def test_e2m1_is_nearest_with_ties_to_even(numbers):
    codes = _narrow.to_e2m1(torch.tensor(numbers)).tolist()
    grid = [e2m1(code) for code in range(8)]
    assert [code & 7 for code in codes] == [nearest_even(torch.tensor(x).item(), grid) for x in numbers]
    assert [bool(code & 8) for code in codes] == [math.copysign(1, x) < 0 for x in numbers]


def test_every_code_of_e2m1_means_what_its_bits_say():
    codes = torch.arange(16, dtype=torch.uint8)
    assert _narrow.from_e2m1(codes).tolist() == [e2m1(code) for code in range(16)]
    assert torch.equal(_narrow.to_e2m1(_narrow.from_e2m1(codes)), codes)


@given(st.lists(st.integers(0, 15), min_size=2, max_size=64).filter(lambda codes: len(codes) % 2 == 0))
def test_the_first_of_a_packed_pair_is_the_low_half(codes):
    pairs = _narrow.packed(torch.tensor(codes, dtype=torch.uint8))
    assert [half for byte in pairs.tolist() for half in (byte % 16, byte // 16)] == codes
    assert _narrow.unpacked(pairs).tolist() == codes


@given(st.floats(2.0**-120, 2.0**120, width=32))
def test_ue8m0_is_the_smallest_power_of_two_that_is_not_below(x):
    power = 2.0 ** (_narrow.to_ue8m0(torch.tensor([x])).item() - 127)
    assert power >= x > power / 2
    assert _narrow.from_ue8m0(_narrow.to_ue8m0(torch.tensor([x]))).item() == power


def test_ue8m0_of_powers_of_two_is_themselves_and_of_zero_the_smallest():
    powers = torch.tensor([2.0**e for e in range(-126, 127)])
    assert torch.equal(_narrow.from_ue8m0(_narrow.to_ue8m0(powers)), powers)
    assert _narrow.to_ue8m0(torch.zeros(1)).item() == 0


def drawn(seed, *shape):
    """Normal, with outliers and a block of zeros."""
    rand = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=rand)
    x *= torch.where(torch.rand(shape, generator=rand) < 0.01, 50.0, 1.0)
    x.view(-1)[:32] = 0
    return x


seeds = st.integers(0, 1 << 30)
sizes = st.integers(1, 40)


@few(60)
@given(seeds, sizes, st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]))
def test_per_tensor_uses_the_whole_range(seed, rows, dtype):
    x = drawn(seed, rows, 32)
    q = _narrow.per_tensor(x, dtype)
    error = (q.dequantised() - x).abs()
    assert _narrow.largest(q.values.float()) == torch.finfo(dtype).max or not x.any()
    assert bool((error <= x.abs() / (16 if dtype == torch.float8_e4m3fn else 8) + q.scale * 2.0**-9).all())


@few(60)
@given(seeds, st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 128]))
def test_groupwise_scales_are_powers_of_two_of_their_own_tile(seed, rows, columns, tile_rows):
    x = drawn(seed, rows, columns)
    q = _narrow.groupwise(x, tile_rows)
    assert q.scales.shape == (-(-rows // tile_rows), -(-columns // 128))
    read = bits(q.values).tolist()
    for i, j in itertools.product(range(q.scales.shape[0]), range(q.scales.shape[1])):
        tile = x[i * tile_rows : (i + 1) * tile_rows, j * 128 : (j + 1) * 128]
        scale = q.scales[i, j].item()
        assert scale / 2 < max(tile.abs().max().item(), 1e-4) / 448 <= scale
        assert math.frexp(scale)[0] == 0.5
        first = tile[0, 0].item()
        assert abs(e4m3(read[i * tile_rows][j * 128]) * scale - first) <= abs(first) / 16 + scale * 2.0**-9
    assert q.dequantised().shape == x.shape


def nibbles(pairs):
    return [[half for byte in row for half in (e2m1(byte % 16), e2m1(byte // 16))] for row in pairs.tolist()]


def by_exponent(q):
    return [[2.0 ** (e - 127) for e in row] for row in q.scales.tolist()]


# How each is made, its values and scales by their bits, and how far a value may be off: by the largest of its block,
# by itself, and by the largest of all.
FORMATS = {
    "mxfp8": (_narrow.mxfp8, 32, lambda q: [[*map(e4m3, row)] for row in bits(q.values).tolist()], by_exponent),
    "mxfp4": (_narrow.mxfp4, 32, lambda q: nibbles(q.values), by_exponent),
    "nvfp4": (
        lambda x: _narrow.nvfp4(x, _narrow.nvfp4_global_scale(x)),
        16,
        lambda q: nibbles(q.values),
        lambda q: [[*map(e4m3, row)] for row in bits(q.scales).tolist()],
    ),
}
OFF = {"mxfp8": (0, 1 / 16, 2.0**-16), "mxfp4": (1 / 3, 0, 0), "nvfp4": (1 / 4, 0, 2.0**-9)}


@pytest.mark.parametrize("kind", FORMATS)
@few(60)
@given(seeds, sizes, st.integers(1, 4))
def test_blocks_read_again(kind, seed, rows, count):
    make, block, values, scales = FORMATS[kind]
    x = drawn(seed, rows, block * count)
    q = make(x)
    again = torch.tensor(values(q)) * torch.tensor(scales(q)).repeat_interleave(block, -1)
    again = again / _narrow.nvfp4_global_scale(x) if kind == "nvfp4" else again
    assert torch.allclose(q.dequantised(), again, rtol=1e-6 * (kind == "nvfp4"), atol=0)
    of_block = x.view(rows, count, block).abs().amax(-1).repeat_interleave(block, -1)
    by_block, by_itself, by_all = OFF[kind]
    assert bool(((again - x).abs() <= of_block * by_block + x.abs() * by_itself + x.abs().amax() * by_all).all())
    assert bool((again.abs() <= 2 * of_block).all())


def test_a_kernels_own_rounding_of_known_blocks():
    """Worked by hand: 6.5 / 6 rounds up to 2, so that 6.5 is 3.25 -> 3 of it; as nvfp4 its scale is e4m3's 1.125."""
    block = torch.zeros(1, 32)
    block[0, :4] = torch.tensor([6.5, -3.0, 1.0, 0.5])
    q = _narrow.mxfp4(block)
    assert q.scales.tolist() == [[128]]
    assert q.dequantised()[0, :4].tolist() == [6.0, -3.0, 1.0, 0.0]
    n = _narrow.nvfp4(block[:, :16], 1.0)
    assert n.scales.float().tolist() == [[1.125]]
    assert n.dequantised()[0, :4].tolist() == [6.75, -3.375, 1.125, 0.5625]


@pytest.mark.parametrize(("tile", "swizzle"), [(128, _narrow.swizzled_128x4), (8, _narrow.swizzled_8x4)])
@few(60)
@given(st.integers(1, 300), st.integers(1, 20))
def test_a_scale_lies_where_the_formula_says(tile, swizzle, rows, columns):
    scales = (torch.arange(rows * columns) % 251).to(torch.uint8).view(rows, columns)
    swizzled = swizzle(scales)
    assert torch.equal(in_tiles(swizzled, rows, columns, tile), scales)
    assert swizzled.sum() == scales.sum(), "what is beside them is zero"
    if tile == 128:
        assert swizzled.shape == _narrow.padded_128x4(rows, columns)
        assert torch.equal(_narrow.linear_128x4(swizzled, rows, columns), scales)


def test_layouts_keep_the_scales_type():
    scales = torch.ones(3, 5).to(torch.float8_e4m3fn)
    assert _narrow.swizzled_128x4(scales).dtype == _narrow.swizzled_8x4(scales).dtype == torch.float8_e4m3fn
    assert _narrow.mn_major(scales).shape == (5, 3)
    assert _narrow.mn_major(scales).is_contiguous()


@pytest.mark.parametrize(("tile", "block"), [(128, 32), (64, 16)])
def test_shuffled_rows_are_the_librarys(tile, block):
    weights = torch.arange(3 * block * 2).view(3 * block, 2)
    shuffled = _narrow.shuffled_rows(weights, tile)
    assert torch.equal(unshuffled(shuffled, block), weights)
    theirs = pytest.importorskip("flashinfer", exc_type=ImportError).shuffle_matrix_a(weights, tile)
    assert torch.equal(shuffled, theirs)
