import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.checking.check import BY_DTYPE, compare, poison


def answer(size=512):
    return torch.randn(size, 64, generator=torch.Generator().manual_seed(3))


def rounded(dtype):
    return answer().to(dtype)


FAULTS = {
    "global scale 1.02": lambda x: x.mul_(1.02),
    "twice": lambda x: x.mul_(2),
    "zeros": lambda x: x.zero_(),
    "all NaN": lambda x: x.fill_(math.nan),
    "one NaN": lambda x: x[3, 3].fill_(math.nan),
    "one infinity": lambda x: x[3, 3].fill_(math.inf),
    "last row missing": lambda x: x[-1].zero_(),
    "one wrong element": lambda x: x[17, 5].add_(1),
    "rows shifted": lambda x: x.copy_(x.roll(1, 0)),
    "sign": lambda x: x.neg_(),
}
LOOSE = check.Tolerance(5e-2, 1.5e-1, 1.5e-2, matched=0.99)


@pytest.mark.parametrize("dtype", list(BY_DTYPE))
def test_rounding_to_the_type_is_right(dtype):
    assert compare(rounded(dtype), answer()).rule == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name, dtype):
    output = rounded(dtype)
    FAULTS[name](output)
    assert compare(output, answer()).rule
    assert name == "global scale 1.02" or compare(output, answer(), LOOSE).rule


ROUNDED_ON_THE_WAY = check.Tolerance(1e-2, 2e-2, 5e-3, matched=0.99)


@pytest.mark.parametrize(
    ("share", "by", "rule"),
    [(0.005, 0.06, ""), (0.02, 0.06, "of which 1 % may"), (0.005, 1.0, "by more than 4 times rtol 0.01")],
)
def test_a_few_elements_may_be_further_off_where_a_tolerance_says_so(share, by, rule):
    output = answer().clone()
    few = torch.rand(output.shape, generator=torch.Generator().manual_seed(5)) < share
    output[few] += by
    found = compare(output, answer(), ROUNDED_ON_THE_WAY).rule
    assert (rule in found, bool(found)) == (True, bool(rule))


@given(st.floats(1e-6, 1e6))
def test_the_verdict_does_not_depend_on_the_size_of_the_numbers(size):
    right, wrong = answer(8).double() * size, answer(8).double() * size
    wrong[0, 0] += 0.1 * size
    assert compare(right, answer(8).double() * size).rule == ""
    assert compare(wrong, answer(8).double() * size).rule


def test_of_another_shape_there_is_no_more_to_say():
    found = compare(torch.zeros(3, 2), torch.zeros(2, 3))
    assert found.lines == (found.rule,) == ("shape (3, 2) instead of (2, 3)",)


def test_one_wrong_element_of_many_is_no_hundred_percent():
    want = torch.ones(1000, 100)
    got = want.clone()
    got[5, 5] += 1
    assert "; 99.99 % of elements match" in compare(got, want).sentence
    assert "; 100 % of elements match" in compare(1.01 * want, want, check.Tolerance(1, 1, 1e-3)).sentence


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool])
def test_integers_and_booleans_are_compared_exactly(dtype):
    want = torch.tensor([1, 100, 0]).to(dtype)
    wrong = want.clone()
    wrong[2] = 1
    assert compare(want.clone(), want).rule == ""
    assert compare(wrong, want).rule == "1 element differs from the reference"


@pytest.mark.parametrize(("got", "want"), [(2**53 + 1, 2**53), (-(2**63), 0), (2**63 - 1, -(2**63)), (7, 6)])
@pytest.mark.parametrize("reference", [torch.int64, torch.float64])
def test_large_integers_are_no_floats(got, want, reference):
    right, wrong = (torch.tensor([value, 1]) for value in (want, got))
    assert compare(right, right.to(reference)).rule == ""
    found = compare(wrong, right.to(reference))
    assert found.sentence.startswith("1 element differs")
    assert found.absolute.sentence == f"at [0]: got {got}, expected {want}"


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_output_is_compared_whole(dtype):
    want = torch.complex(answer(), answer().roll(1, 0)).to(dtype)
    assert compare(want.clone(), want).rule == ""
    for wrong in (want.conj(), want.real, want.real.to(dtype), 1j * want):
        assert compare(wrong, want).rule
        assert compare(want, wrong).rule
    assert compare(-2 * want, want).report[-1] == "explained by a scale: everything is multiplied by -2"


def masked_logits():
    logits = answer(8).clone()
    logits[:, ::2], logits[3, 5] = -math.inf, math.inf
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_infinity_is_right_where_the_reference_has_it(dtype):
    assert compare(masked_logits().to(dtype), masked_logits()).rule == ""


STRANGE = {
    "an infinity of the other sign": lambda x: x[0, 0].fill_(math.inf),
    "a number where there is none": lambda x: x[0, 0].fill_(0.5),
    "NaN where an infinity is": lambda x: x[0, 0].fill_(math.nan),
    "an infinity where a number is": lambda x: x[0, 1].fill_(math.inf),
    "another number beside infinities": lambda x: x[0, 1].add_(1),
    "all by 2 %": lambda x: x.mul_(1.02),
}


@pytest.mark.parametrize("fault", STRANGE)
def test_beside_infinities_all_else_is_held_to_its_bounds(fault):
    output = masked_logits()
    STRANGE[fault](output)
    assert compare(output, masked_logits()).rule


def test_what_beside_infinities_is_wrong_is_explained():
    twice = compare(2 * masked_logits(), masked_logits())
    assert twice.report[1:] == (
        "0 NaN, 257 infinite of 512 elements",
        "explained by a scale: everything is multiplied by 2",
    )


def test_nan_is_no_answer_even_where_the_reference_has_it():
    both = torch.tensor([0.5, math.nan])
    assert compare(both, both).rule == "the reference has 1 NaN, so that no answer can be right"


def test_nan_of_an_output_that_was_not_poisoned_is_the_calls_own():
    got = torch.tensor([1.0, math.nan])
    assert compare(got, torch.ones(2)).report[-1].endswith("that is NaN, as before the call: it was not written")
    assert compare(got, torch.ones(2), poisoned=False).report[-1] == "explained by a region, [1:2], that is NaN"


def test_a_right_answer_has_no_report_and_an_empty_one_is_right():
    for right in (block(), torch.empty(0, 4)):
        assert (compare(right, right).rule, compare(right, right).report) == ("", ())


@pytest.mark.parametrize("dtype", [*BY_DTYPE, torch.int32, torch.uint8, torch.bool])
def test_poison_is_no_answer(dtype):
    out = torch.zeros(4, 4).to(dtype)
    poison((out,))
    assert compare(out, torch.zeros(4, 4)).rule


def block(rows=16, columns=24):
    return torch.randn(4, rows, columns, generator=torch.Generator().manual_seed(9))


def spoilt(*where, by):
    x = block()
    x[where] = by
    return x


EXPLAINED = {
    "explained by a scale: everything is multiplied by 2": 2 * block(),
    "explained by a scale: everything is multiplied by -1": -block(),
    "explained by a transposition: dimensions 1 and 2 are swapped": block().mT.reshape(4, 16, 24),
    "explained by a transposition: dimensions 0 and 1 are swapped": block().transpose(0, 1).reshape(4, 16, 24),
    "explained by a shift: what belongs at i of dimension 1 is at i+1": block().roll(1, 1),
    "explained by a shift: what belongs at i of dimension 0 is at i-1": block().roll(-1, 0),
    "explained by a region, [1:3, 4:6, 8:16], that is zero": spoilt(slice(1, 3), slice(4, 6), slice(8, 16), by=0),
    "explained by a region, [3:4, 15:16, :], that is NaN, as before the call: it was not written": spoilt(
        3, -1, by=math.nan
    ),
    "only a few elements are wrong": spoilt(1, 2, 3, by=10),
}


@pytest.mark.parametrize("explanation", EXPLAINED)
def test_what_explains_a_wrong_answer_is_said(explanation):
    assert compare(EXPLAINED[explanation], block()).report[-1].startswith(explanation)


def test_noise_has_no_explanation_and_its_size_is_told():
    noisy = block() + 0.3 * torch.randn(4, 16, 24, generator=torch.Generator().manual_seed(1))
    noisy[0, 0, 0] = math.inf
    percentiles, strange, explanation = compare(noisy, block()).report
    assert percentiles.startswith("errors in units of their row's rms, 50 %: 0.2")
    assert strange == "0 NaN, 1 infinite of 1536 elements"
    assert explanation == "no scale, transposition, shift or region explains it"


def test_the_worst_by_size_and_the_worst_for_its_row_are_both_told():
    want = torch.ones(2, 16)
    want[1] = 1000.0
    got = want.clone()
    got[0, 3] += 0.5
    got[1, 6] += 100.0
    found = compare(got, want)
    assert (found.absolute.where, found.relative.where) == ((1, 6), (0, 3))
    assert (found.worst_abs, found.worst_rel) == pytest.approx((100, 0.5))
    assert found.sentence.startswith("2 elements differ by more than")
    assert "worst at [1, 6]" in found.sentence


@pytest.mark.parametrize("columns", [1, 4, 15])
def test_a_narrow_row_of_small_numbers_is_held_to_the_size_of_all(columns):
    want = torch.ones(64, columns)
    want[7] = 1e-3
    near, far = want.clone(), want.clone()
    near[7] += 1e-4
    far[7] += 1e-1
    tolerance = check.Tolerance(1e-3, 1e-3, 1e-3)
    assert compare(near, want, tolerance).rule == ""
    assert " differ" in compare(far, want, tolerance).rule


LOGARITHM = check.Tolerance(1e-3, 2e-3, 1e-3, absolute=3e-3)


@pytest.mark.parametrize("size", [1e-3, 0.3, 10.0])
def test_a_logarithm_may_be_off_by_the_same_wherever_it_lies_and_not_be_another_one(size):
    lse = torch.full((3, 8), size)
    assert compare(lse + 2.8e-3, lse, LOGARITHM).rule == ""
    assert compare(lse + 0.05, lse, LOGARITHM).rule
    assert bool(compare(0.6931 * lse, lse, LOGARITHM).rule) == (0.3 * size > 3e-3)
