"""Whatever a call changes of its inputs is found."""

from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from own_calls import drawn, seen

from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine import fingerprint
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint, checksums
from pytest_flashinfer_perf.engine.target import Target

ROW = 4 * fingerprint.COLUMNS  # bytes
SIZES = st.one_of(st.integers(1, 80), st.sampled_from([k * ROW + more for k in (1, 2, 8, 9) for more in (-4, 0, 3, 8)]))
WORDS = (torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)


def memory(size, seed):
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def is_found(before, after):
    return not torch.equal(checksums(before), checksums(after))


@given(SIZES, st.integers(0, 9), st.sampled_from(WORDS), st.data())
def test_the_same_bits_of_all_or_some_words_are_found(size, seed, dtype, data):
    """Sign flips are the highest bit of each word; a period is a stride of what is changed."""
    raw = memory(size // 8 * 8, seed)
    assume(len(raw))
    after = raw.clone()
    words, bits = after.view(dtype), 8 * dtype.itemsize
    mask = data.draw(st.one_of(st.sampled_from([1 << n for n in range(bits)]), st.integers(1, 2**bits - 1)))
    period = data.draw(st.sampled_from([1, 2, 3, 64, 1024, fingerprint.COLUMNS]))
    words[::period] ^= torch.tensor(mask - (2**bits if mask >= 2 ** (bits - 1) else 0), dtype=dtype)
    assert is_found(raw, after)


@given(SIZES, st.integers(0, 9), st.data())
def test_a_single_bit_and_permutations_are_found(size, seed, data):
    """Of bytes, words, rows, and blocks that are multiplied at once."""
    raw = memory(size, seed)
    after = raw.clone()
    after[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert is_found(raw, after)
    unit = data.draw(st.sampled_from([1, 2, 4, 8, ROW, fingerprint.ROWS * ROW]))
    raw = raw[: size // unit * unit]
    units = raw.view(-1, unit) if len(raw) else raw[None]
    moved = data.draw(st.sampled_from([units.flip(0), units.roll(1, 0), units[torch.randperm(len(units))]])).flatten()
    assert torch.equal(moved, raw) or is_found(raw, moved)


@given(st.sampled_from(FLOATS), st.integers(1, 3 * fingerprint.COLUMNS), st.booleans())
def test_scalings_are_found(dtype, count, same):
    x = torch.ones(count, dtype=dtype) if same else torch.arange(1, count + 1).to(dtype)
    for factor in (-1.0, 2.0, 0.5, 3.0, 0.0, -0.5):
        assert torch.equal(x, x * factor) or is_found(x.view(torch.uint8), (x * factor).view(torch.uint8))


def test_what_was_found_in_use_is_wrong():
    x, changed = drawn(1024, dtype=torch.float64), r"^the call changed its input \(1024,\) of float64: return it"
    for call in (lambda z: z.neg_().square().clone(), lambda z: (z.mul_(2) > 0).float()):
        with pytest.raises(WrongAnswerError, match=changed):
            seen(call, x.clone())
    for big, call in ((torch.ones(1 << 24), torch.neg_), (drawn(64, 2048), lambda z: z.copy_(z.flip(0)))):
        with pytest.raises(WrongAnswerError, match="changed its input"):
            seen(lambda z, call=call: call(z) is None, big)


@pytest.mark.parametrize("dtype", [*WORDS, *FLOATS, *NARROW, torch.bool, torch.uint8])
def test_every_type_has_a_fingerprint(dtype):
    x = (drawn(33) > 0).to(dtype)
    target = Target(len, (x, x[4:], [x.view(3, 11).mT]))
    before = Fingerprint(target)
    assert before.changed() == set()
    x.view(torch.uint8)[-1] ^= 1
    assert before.changed()


def test_an_input_beside_an_output_is_verified_byte_by_byte():
    """Of one storage: rows in turn, so that the ranges of both overlap."""
    whole = drawn(18, 8)[2:]
    for x, out in ((whole[:, :4], whole[:, 4:]), (whole[:8], whole[8:])):
        for more in (0, 1):

            def call(x, out, more=more):
                out.copy_(-x)
                x[-1, -1] += more

            with nullcontext() if more == 0 else pytest.raises(WrongAnswerError, match="changed its input"):
                assert seen(call, x, out, out=out, reference=lambda x=x: -x).checks
    part = whole[:4]
    assert seen(lambda _whole, out: out.zero_(), whole, part, out=part, reference=torch.zeros(4, 8)).samples


MOVED = {
    "another shape": lambda x, _items: x.t_(),
    "one dimension more": lambda x, _items: x.unsqueeze_(0),
    "other memory": lambda x, _items: setattr(x, "data", -x),
    "one more": lambda x, items: items.append(x + 1),
    "one less": lambda _x, items: items.pop(),
    "another one": lambda x, items: items.__setitem__(0, x + 1),
    "resized": lambda x, _items: x.resize_(2),
}


@pytest.mark.parametrize("name", MOVED)
def test_arguments_that_are_exchanged_are_wrong(name):
    for answer in (lambda x: x, lambda _x: None):
        with pytest.raises(WrongAnswerError, match=r"^the call exchanged or reshaped a tensor among its arguments"):
            seen(lambda x, items, answer=answer: [MOVED[name](x, items), answer(x)][1], drawn(4, 6), [drawn(4, 6)])


def test_an_output_may_be_resized_by_the_call_that_writes_it():
    x = drawn(8)
    assert seen(torch.neg, x, out=torch.empty(0), reference=lambda: -x).checks
