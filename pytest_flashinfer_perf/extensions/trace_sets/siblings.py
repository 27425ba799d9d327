"""Inputs that agree with others in all that a memo's key may hold, and that have another answer.

A solution that remembers answers finds them by a key: an address, a shape, first elements, a sample, a sum. A sibling
has all of these in common with the inputs that it is made from: few elements of one tensor, none near its ends, have
changed places. Its answer differs, so that who remembers is wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pytest_flashinfer_perf.extensions.trace_sets.solution import BITS, Inputs

Differs = Callable[[Inputs], bool]
PAIRS = (1, 32, 1024)  # fewer are in fewer samples, more are in the share of an answer that an evaluator looks at
ENDS = 4  # the first and the last quarter of a tensor stay as they are
TRIES = 16  # for a sum that is the same to the last bit, though floating-point numbers are added in another order
FEWEST = 8  # elements of which a pair is taken, so that it differs
_RANDOM = random.SystemRandom()


@dataclass(frozen=True)
class Siblings:
    """The positions of the inputs that siblings change, each with how many pairs of its elements they exchange."""

    pairs: Mapping[int, int] = field(default_factory=dict)

    def of(self, inputs: Inputs) -> Inputs:
        """A sibling that nobody can foresee; the inputs themselves if none of them can be changed."""
        if not self.pairs:
            return inputs
        at = _RANDOM.choice(list(self.pairs))
        return _with(inputs, at, self.pairs[at])


def siblings(inputs: Inputs, positions: Iterable[int], differs: Differs) -> Siblings:
    """Find the siblings of inputs: as few pairs of each position as change the answer, and none if no number does."""
    tensors = [at for at in positions if isinstance(inputs[at], Tensor) and inputs[at].numel() >= 2 * ENDS]
    enough = {at: next((pairs for pairs in PAIRS if differs(_with(inputs, at, pairs))), None) for at in tensors}
    return Siblings({at: pairs for at, pairs in enough.items() if pairs is not None})


def _with(inputs: Inputs, at: int, pairs: int) -> Inputs:
    return [_exchanged(value, pairs) if index == at else value for index, value in enumerate(inputs)]


def _exchanged(tensor: Tensor, pairs: int) -> Tensor:
    """A copy with elements that have changed places, whose sum is the same to the last bit if that can be had."""
    total = _sum(tensor)
    for _ in range(TRIES):
        copy = tensor.clone(memory_format=torch.contiguous_format)
        _exchange(copy.view(-1), pairs)
        if _sum(copy) == total:
            break
    return copy


def _exchange(elements: Tensor, pairs: int) -> None:
    """Exchange small elements with large ones, from random places."""
    end = len(elements) // ENDS
    inner = range(end, len(elements) - end)
    places = torch.tensor(_RANDOM.sample(inner, min(len(inner), max(2 * pairs, FEWEST))), device=elements.device)
    bits = elements.view(BITS[elements.itemsize])
    order = places[bits[places].view(elements.dtype).float().argsort()]
    count = min(pairs, len(order) // 2)
    ones, others = order[:count], order[-count:]
    bits[ones], bits[others] = bits[others], bits[ones]


def _sum(tensor: Tensor) -> float:
    return tensor.float().sum().item()
