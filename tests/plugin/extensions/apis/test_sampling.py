"""Samplers are right where their tokens are as frequent as they should be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf.checking.check import compare
from pytest_flashinfer_perf.extensions.apis import samplers
from pytest_flashinfer_perf.extensions.apis.templates import Api, Declared

probabilities = torch.linspace(1, 4, 8).expand(2048, 8).softmax(-1)
SAMPLER = Api(
    "flashinfer.x", "x", "x", "sampling", (), (), (Declared("probs", "probs"),), (Declared("samples", "samples"),)
)


@given(seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_a_right_sampler_is_right(seed):
    torch.manual_seed(seed)
    expected = samplers.probabilities(SAMPLER, {"probs": probabilities, "top_k": 5})
    samples = torch.multinomial(expected, 1)[:, 0]
    assert not compare(samplers.excess(samples, expected), torch.zeros(1), samplers.ALLOWED).rule


WRONG = {
    "the likeliest": lambda p: p.argmax(-1),
    "zeros": lambda p: torch.zeros(len(p)),
    "any of them": lambda p: torch.randint(3, 8, (len(p),)),
    "one impossible": lambda p: torch.cat([torch.multinomial(p, 1)[:-1, 0], torch.tensor([0])]),
    "no token": lambda p: torch.full((len(p),), 2**31 - 1),
    "one too few": lambda p: torch.multinomial(p, 1)[:-1, 0],
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_sampler_is_wrong(which):
    torch.manual_seed(0)
    expected = samplers.probabilities(SAMPLER, {"probs": probabilities, "top_k": 5})
    found = compare(samplers.excess(WRONG[which](expected), expected), torch.zeros(1), samplers.ALLOWED)
    assert found.rule


def test_what_rounding_keeps_of_a_nucleus_is_not_compared():
    values = torch.tensor([[0.5, 0.3, 0.1, 0.1]])
    sure = samplers.undecided({"top_p": 0.85}, values)
    unsure = samplers.undecided({"top_p": torch.tensor([0.8])}, values)
    assert (sure.tolist(), unsure.tolist()) == ([[False] * 4], [[False, False, True, False]])


@given(rows=st.integers(1, 5), p=st.floats(0.05, 1.0), k=st.integers(1, 8))
def test_filtered_probabilities_are_the_largest_ones(rows, p, k):
    values = torch.rand(rows, 8).softmax(-1)
    left = samplers.probabilities(SAMPLER, {"probs": values, "top_k": k, "top_p": torch.full((rows,), p)})
    assert torch.allclose(left.sum(-1), torch.ones(rows, dtype=torch.float64))
    for row, kept in zip(values, left > 0, strict=True):
        assert kept.sum() <= k
        assert row[kept].min() >= row[~kept].max() if (~kept).any() else True
