import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf import check
from pytest_flashinfer_perf.check import BY_DTYPE, compare, poison


def answer(size=512):
    return torch.randn(size, 64, generator=torch.Generator().manual_seed(3))


def rounded(dtype):
    return answer().to(dtype)


@pytest.mark.parametrize("dtype", list(BY_DTYPE))
def test_rounding_to_the_type_is_right(dtype):
    assert compare(rounded(dtype), answer()).rule == ""


def last_row_missing(x):
    x[-1] = 0


def one_element(x):
    x[17, 5] += 1


FAULTS = {
    "global scale 1.02": lambda x: x.mul_(1.02),
    "twice": lambda x: x.mul_(2),
    "zeros": lambda x: x.zero_(),
    "all NaN": lambda x: x.fill_(math.nan),
    "one NaN": lambda x: x[3, 3].fill_(math.nan),
    "one infinity": lambda x: x[3, 3].fill_(math.inf),
    "last row missing": last_row_missing,
    "one wrong element": one_element,
    "rows shifted": lambda x: x.copy_(x.roll(1, 0)),
    "sign": lambda x: x.neg_(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name, dtype):
    output = rounded(dtype)
    FAULTS[name](output)
    assert compare(output, answer()).rule


ROUNDED_ON_THE_WAY = check.Tolerance(1e-2, 2e-2, 5e-3, matched=0.99)


@pytest.mark.parametrize(
    ("share", "by", "rule"),
    [
        (0.005, 0.06, ""),
        (0.02, 0.06, "of which 1 % may"),
        (0.005, 1.0, "by more than 4 times rtol 0.01"),
    ],
)
def test_a_few_elements_may_be_further_off_where_a_tolerance_says_so(share, by, rule):
    output = answer().clone()
    few = torch.rand(output.shape, generator=torch.Generator().manual_seed(5)) < share
    output[few] += by
    assert rule in compare(output, answer(), ROUNDED_ON_THE_WAY).rule
    assert bool(rule) == bool(compare(output, answer(), ROUNDED_ON_THE_WAY).rule)


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"global scale 1.02"}))
def test_a_planted_fault_is_caught_all_the_same(name):
    output = answer().clone()
    FAULTS[name](output)
    assert compare(output, answer(), check.Tolerance(5e-2, 1.5e-1, 1.5e-2, matched=0.99)).rule


@given(st.floats(1e-6, 1e6))
def test_the_verdict_does_not_depend_on_the_size_of_the_numbers(size):
    right, wrong = answer(8).double() * size, answer(8).double() * size
    wrong[0, 0] += 0.1 * size
    assert compare(right, answer(8).double() * size).rule == ""
    assert compare(wrong, answer(8).double() * size).rule


def test_the_report_names_the_worst_element():
    output = answer()
    output[17, 5] += 10
    found = compare(output, answer())
    assert found.where == (17, 5)
    assert found.worst_abs == pytest.approx(10, rel=1e-3)
    assert "1 elements differ" in found.sentence
    assert "worst at [17, 5]" in found.sentence


def test_another_shape_is_wrong():
    assert compare(torch.zeros(3, 2), torch.zeros(2, 3)).rule == "shape (3, 2) instead of (2, 3)"


def test_integers_are_compared_exactly():
    assert compare(torch.tensor([1, 2]), torch.tensor([1, 2])).rule == ""
    assert compare(torch.tensor([1, 3]), torch.tensor([1, 2])).rule


def test_an_infinity_of_the_reference_may_be_one():
    both = torch.tensor([0.5, -math.inf])
    assert "NaN" not in compare(both, both).rule


def test_an_empty_output_is_right():
    assert compare(torch.empty(0, 4), torch.empty(0, 4)).rule == ""


@pytest.mark.parametrize("dtype", [*BY_DTYPE, torch.int32, torch.uint8])
def test_poison_is_no_answer(dtype):
    out = torch.zeros(4, 4).to(dtype)
    poison((out,))
    assert compare(out, torch.zeros(4, 4)).rule


def test_exact_is_the_rule_for_unknown_types():
    assert check.EXACT.rtol == check.EXACT.atol == 0
