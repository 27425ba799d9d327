"""How inputs are changed for one more call, and put back."""

import pytest
import torch

from pytest_flashinfer_perf.measurement import verification


def test_what_is_next_to_a_view_is_left_alone():
    """Others may keep their own beside it."""
    whole = torch.arange(16.0)
    [halved] = verification.changes_of_inputs((whole[4:8],), ())
    with halved.made():
        assert whole.tolist() == [0, 1, 2, 3, 2, 2.5, 3, 3.5, *range(8, 16)]
    assert torch.equal(whole, torch.arange(16.0))


def test_packed_numbers_and_indices_are_never_changed():
    arena = torch.zeros(64, dtype=torch.uint8)
    inputs = (arena[:32], arena[32:].view(torch.float32), torch.arange(4), torch.ones(4, dtype=torch.bool))
    assert list(verification.changes_of_inputs(inputs, ())) == []
    assert list(verification.changes_of_inputs((torch.ones(4),), ())) != []
    out = torch.ones(4)
    assert list(verification.changes_of_inputs((out, out[1:]), (out,))) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_every_value_of_a_type_comes_back(dtype):
    """Subnormal numbers, which have no half, and NaN."""
    bits = {1: torch.int8, 2: torch.int16}[dtype.itemsize]
    every = torch.arange(2 ** (8 * dtype.itemsize)).to(bits)
    x = every.clone().view(dtype)
    for change in verification.changes_of_inputs((x,), ()):
        with change.made():
            assert not torch.equal(x.view(bits), every)
        assert torch.equal(x.view(bits), every)
    assert len(list(verification.changes_of_inputs((x,), ()))) == 2
    assert len(list(verification.changes_of_inputs((every[every >= 0].view(dtype),), ()))) == 1
