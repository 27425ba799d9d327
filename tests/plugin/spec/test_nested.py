"""Tensors in whatever inputs are made of: found once, named, and with their signs."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch

from pytest_flashinfer_perf.spec import dtypes, nested

A, B, C, D = (torch.full((2,), float(n)) for n in range(4))


class Pair(NamedTuple):
    first: object
    second: object


@dataclass
class Stored:
    x: object
    unset: object = field(init=False)
    y: object = None


class Told(list):
    """Iterates over something else than it holds, and has an attribute, in a dictionary and in a slot."""

    __slots__ = ("__hidden", "plain")

    def __init__(self, values, hidden):
        super().__init__(values)
        self.__hidden, self.plain = hidden, None

    def __iter__(self):
        raise AssertionError("it is not asked")


def names(found):
    return [int(one[0]) for one in found]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (A, [0]),
        (None, []),
        ((A, [B, {"k": (C,)}], 3, "x"), [0, 1, 2]),
        ([A, A, (A,)], [0, 0, 0]),
        (Stored([B], y=Pair(C, OrderedDict(d=D))), [1, 2, 3]),
        (Told([A, B], C), [0, 1]),
    ],
)
def test_tensors_are_found_in_containers_in_their_order(tree, expected):
    assert names(nested.tensors(tree)) == expected


def test_a_container_is_entered_once():
    inner = [A]
    ring = [inner, inner, B]
    ring.append(ring)
    assert names(nested.tensors(ring)) == [0, 1]


def test_what_is_reached_includes_attributes():
    holder = Stored(A)
    holder.beside = B
    tensor = torch.zeros(1)
    tensor.scales = C
    found = list(nested.reached([holder, tensor, Told([], D), len]))
    assert names(one for one in found if isinstance(one, torch.Tensor)) == [0, 1, 0, 2, 3]
    assert len in found


def test_tensors_are_named_by_what_leads_to_them():
    found = nested.named_tensors({"q": A, "kv": Pair(B, Stored([C], y=D))})
    assert {name: int(one[0]) for name, one in found} == {"q": 0, "kv.first": 1, "kv.second.x.0": 2, "kv.second.y": 3}


def test_parts_are_put_back_where_they_were():
    for tree, read in (
        ([A], lambda t: t[0]),
        ({"k": A}, lambda t: t["k"]),
        (OrderedDict(k=A), lambda t: t["k"]),
        (Stored(A), lambda t: t.x),
        (Told([], A), lambda t: t._Told__hidden),
    ):
        part = next(part for part in nested.parts(tree) if part.value is A)
        part.put(tree, part.place, B)
        assert read(tree) is B


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64])
def test_both_signs_are_seen_in_every_type(dtype):
    for values, both in (((1.0, -1.0), True), ((1.0, 2.0), False), ((-1.0, -2.0), False)):
        assert nested.has_both_signs(torch.tensor(values).to(dtype)) is both
    assert nested.has_both_signs(torch.tensor([1 - 1j]))


def test_types_have_flashinfers_names():
    assert dtypes.computed_in(None, [A.to(torch.float8_e5m2), B]) == "fp8_e5m2"
    assert dtypes.computed_in(None, [A.double()]) == "float64"
    assert (dtypes.computed_in(None, []), dtypes.computed_in("fp4", [A])) == ("", "fp4")
    with pytest.raises(ValueError, match="flops_dtype: unknown name 'fp5'"):
        dtypes.computed_in("fp5", [])
    assert (dtypes.bytes_of("fp8_e4m3"), dtypes.bytes_of("bfloat16")) == (1, 2)
    assert (dtypes.is_fp8("fp8_e4m3"), dtypes.is_fp8("bfloat16")) == (True, False)
