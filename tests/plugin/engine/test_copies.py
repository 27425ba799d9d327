"""Each timed call gets what was given: copies of arguments, and what is done with arguments that cannot be copied."""

import collections
import dataclasses
import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from own_calls import drawn, seen
from torch import Tensor
from torch.nn import Parameter

from pytest_flashinfer_perf import Measuring
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine import copies
from pytest_flashinfer_perf.engine.refusals import CallError

ROTATING = Measuring(iters=6, warmup=1)


class Tagged(Tensor):
    """A tensor that knows its scale, and that any of torch's functions keep as one."""


class Pair(NamedTuple):
    k: Tensor
    v: Tensor


class Point(tuple):
    """With another constructor than a tuple's."""

    __slots__ = ()

    def __new__(cls, x, y):
        return super().__new__(cls, (x, y))


class Numbered(list):
    def __init__(self, number, items):
        super().__init__(items)
        self.number = number


class Folder(dict):
    __slots__ = ("__parent", "name")

    def __init__(self, name, **items):
        super().__init__(**items)
        self.name, self.__parent = name, items

    def __copy__(self):
        return self

    def __setitem__(self, name, value):
        raise KeyError(name)


@dataclasses.dataclass
class Scaled:
    values: Tensor
    factor: dataclasses.InitVar[int] = 3

    def __post_init__(self, factor):
        self.factor, self.first = factor, self.values[:1]


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    values: Tensor
    unset: Any = dataclasses.field(init=False)


def complex_drawn():
    return torch.complex(drawn(4, 4), drawn(4, 4))


def shared():
    whole, items = drawn(8, 4), [drawn(3)]
    return {"k": whole[:4], "v": whole[2:].mT, "again": items, "the same": items, "twice": (whole, whole)}


class Output(collections.OrderedDict):
    """As transformers has them: an item is an attribute too."""

    def __init__(self, logits):
        super().__init__(logits=logits)
        self.logits = logits


def with_attributes(tensor, **attributes):
    for name, value in attributes.items():
        setattr(tensor, name, value)
    return tensor


COPIED = {
    "a tensor": lambda: drawn(4, 4),
    "a parameter": lambda: Parameter(drawn(4, 4)),
    "a parameter with a gradient": lambda: with_attributes(Parameter(drawn(4, 4)), grad=drawn(4, 4)),
    "a leaf": lambda: drawn(4, 4).requires_grad_(),
    "conjugate": lambda: complex_drawn().conj(),
    "negative": lambda: complex_drawn().conj().imag,
    "transposed": lambda: drawn(4, 6).mT,
    "with gaps": lambda: drawn(8, 8)[::2, ::3],
    "expanded": lambda: drawn(4, 1).expand(4, 9),
    "windows": lambda: drawn(9).unfold(0, 4, 2),
    "empty": lambda: [drawn(0, 4), drawn(4)],
    "an odd offset": lambda: torch.arange(40, dtype=torch.int8)[3:8],
    "inference": lambda: torch.inference_mode()(drawn)(4, 4),
    "a subclass": lambda: with_attributes(drawn(4, 4).as_subclass(Tagged), scale=drawn(4), label="w"),
    "attributes": lambda: with_attributes(drawn(4), scale=drawn(2)),
    "a named tuple": lambda: Pair(drawn(4), drawn(4)),
    "a tuple of another constructor": lambda: Point(drawn(4), 3),
    "torch's own result": lambda: torch.max(drawn(4, 4), 0),
    "a list of another constructor": lambda: Numbered(3, [drawn(4)]),
    "a dict of another constructor": lambda: Folder("f", x=drawn(4)),
    "an ordered dict": lambda: collections.OrderedDict(b=drawn(4), a=drawn(2)),
    "a default dict": lambda: collections.defaultdict(list, a=drawn(2)),
    "an item that is an attribute": lambda: Output(drawn(4)),
    "a dataclass": lambda: Scaled(drawn(4), 5),
    "a frozen dataclass": lambda: Frozen(drawn(4)),
    "shared": shared,
    "one array": lambda: [torch.from_numpy(array := np.arange(16.0)), torch.from_numpy(array)],
}


def look(tree, known):
    """All that a call can tell of its argument except addresses: types, flags, values, and which objects are one."""
    known.setdefault(id(tree), len(known))
    head = (type(tree).__name__, known[id(tree)])
    attributes = getattr(tree, "__dict__", {})
    below = [(name, look(value, known)) for name, value in attributes.items() if name != "_is_param"]
    if isinstance(tree, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            flags = (tree.is_leaf, tree.requires_grad, tree.is_conj(), tree.is_neg(), tree.is_inference())
            place = known.setdefault(("storage", tree.untyped_storage().data_ptr()), len(known)) if tree.numel() else 0
            grad = look(tree.grad, known) if tree.is_leaf and tree.grad is not None else None
            values = tree.detach().resolve_conj().resolve_neg().tolist()
        return (*head, flags, str(tree.dtype), tree.stride(), tuple(tree.shape), place, str(values), grad, below)
    if dataclasses.is_dataclass(tree):
        names = [field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name)]
        return (*head, [(name, look(getattr(tree, name), known)) for name in names], below)
    if isinstance(tree, dict):
        return (*head, getattr(tree, "default_factory", 0), [(k, look(v, known)) for k, v in tree.items()], below)
    if isinstance(tree, (tuple, list)):
        return (*head, [look(value, known) for value in tree], below)
    return tree


def addresses(tree):
    return {tensor.untyped_storage().data_ptr() for tensor in copies.in_memory(tree)}


@pytest.mark.parametrize("name", COPIED)
def test_every_call_gets_what_was_given(name):
    argument, looks, places = COPIED[name](), [], []

    def call(x):
        places.append(addresses(x))
        looks.append(look(x, {}))

    measured = seen(call, argument, measuring=ROTATING)
    assert looks == [look(argument, {})] * 8
    assert len(set(map(frozenset, places))) == 6, "each of six timed calls, the last of them where the first one was"
    assert (measured.timing.cold_l2, measured.timing.notes) == ("rotate", ())


ANOTHER = "a copy of its argument (4, 4) of float32 would have another"
HELD = "holds memory that is not copied"
NOT_COPIED = {
    f"{ANOTHER} grad_fn": lambda: Parameter(drawn(4, 4)) * 2,
    "(6, 4) of float32 would have another grad_fn": lambda: Parameter(drawn(4, 6)).mT,
    f"{ANOTHER} _backward_hooks": lambda: [weight := Parameter(drawn(4, 4)), weight.register_hook(abs)][0],
    "an argument, a list, contains itself": lambda: [made := [drawn(4)], made.append(made)][0],
    "two of the arguments share memory, and not as views of one storage": lambda: [
        torch.from_numpy(array := np.arange(16.0)),
        torch.from_numpy(array[8:]),
    ],
    f"an argument, a SimpleNamespace, {HELD}": lambda: SimpleNamespace(weight=drawn(4)),
    f"an argument, a set, {HELD}": lambda: {drawn(4)},
    f"an argument, a deque, {HELD}": lambda: collections.deque([drawn(4)]),
    f"an argument, a Linear, {HELD}": lambda: torch.nn.Linear(2, 2),
    f"an argument, a ndarray, {HELD}": lambda: np.ones(4),
}


@pytest.mark.parametrize("sentence", NOT_COPIED)
def test_what_cannot_be_copied_is_given_itself_and_the_row_says_so(sentence):
    argument, x, got = NOT_COPIED[sentence](), drawn(8), []
    measured = seen(lambda *both: got.append(both), argument, x, measuring=ROTATING)
    assert all(a is argument and b is x for a, b in got)
    [note] = measured.timing.notes
    assert (measured.timing.cold_l2, len(got)) == ("flush", 8)
    assert note.startswith("not rotated: ")
    assert sentence in note


def test_a_training_step_and_a_product_with_a_conjugate_are_right():
    weight, x, a = Parameter(drawn(8, 8)), drawn(4, 8), complex_drawn()

    def step(x, weight):
        (x @ weight).square().sum().backward()
        gradient, weight.grad = weight.grad, None
        return gradient

    wanted = lambda: 2 * x.mT @ (x @ weight.detach())  # noqa: E731
    for reference in (wanted(), wanted):
        assert seen(step, x, weight, reference=reference, measuring=ROTATING).checks
    assert seen(torch.mm, a.mH, a, reference=lambda: a.mH @ a, measuring=ROTATING).timing.cold_l2 == "rotate"


@given(st.data())
def test_views_keep_their_memory_whatever_their_strides_are(data):
    whole = torch.arange(64).to(data.draw(st.sampled_from([torch.int8, torch.float16, torch.complex128])))
    sizes = st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 4))
    strides = st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 3))
    views = st.builds(whole.as_strided, sizes, strides, st.integers(0, 20))
    several = data.draw(st.lists(views, min_size=1, max_size=4))
    made = copies.clone(several, set())
    assert look(made, {}) == look(several, {})
    assert addresses(made).isdisjoint(addresses(several))


STRANGE = {
    "sparse_coo tensor": lambda: torch.eye(3).to_sparse(),
    "sparse_csr tensor": lambda: torch.eye(3).to_sparse_csr(),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantised tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "tensor without data": lambda: torch.ones(3, device="meta"),
    "MaskedTensor": lambda: torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])),
    "_mkldnn tensor": lambda: torch.ones(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_of_another_kind_are_refused_before_the_call_and_not_compared(kind):
    strange, called = STRANGE[kind](), []
    for argument in (strange, {"x": [strange]}):
        with pytest.raises(CallError, match=f"^an argument is a {kind}, which cannot be copied and verified: let fn"):
            seen(called.append, argument)
    for name in ("out", "reference"):
        with pytest.raises(CallError, match=f"^{name} is a {kind}, which cannot be compared"):
            seen(called.append, drawn(3), **{name: strange})
    assert called == []
    assert seen(lambda _x: strange is None, drawn(3), measuring=ROTATING).samples, "a function may hold it"
    if kind != "tensor without data":
        assert seen(lambda _x: strange, drawn(3), measuring=ROTATING).samples
        with pytest.raises(CallError, match=f"^an answer is a {kind}, which cannot be compared: give it as tensors"):
            seen(lambda _x: strange, drawn(3), reference=drawn(3))


def test_what_one_call_uses_up_is_refused():
    for once in (iter([1]), (n for n in "ab"), map(abs, [1])):
        with pytest.raises(CallError, match=rf"^an argument is a {type(once).__name__}, which one call uses up: pass"):
            seen(list, once)


def test_an_answer_on_another_device_or_of_another_type_is_wrong():
    x = drawn(8)
    for other in (Tensor.bfloat16, Tensor.double, lambda y: y.to("meta"), lambda y: y.to_sparse()):
        for reference in (None, lambda: 2 * x):
            falls = itertools.chain([2 * x] * 2, itertools.repeat(other(2 * x)))
            said = r"of a timed call, output 0: |computed nothing yet"
            with pytest.raises((WrongAnswerError, CallError), match=said):
                seen(lambda _x, falls=falls: next(falls), x, reference=reference)


class Anything:
    """Has whatever it is asked for, or fails."""

    def __init__(self, *, fails=False):
        vars(self)["_fails"] = fails

    def __getattr__(self, name):
        if vars(self)["_fails"]:
            raise RuntimeError(name)
        return self

    def __call__(self, *_args, **_how):
        return self

    def __bool__(self):
        raise RuntimeError


def peers():
    made = [Frozen(drawn(4)) for _ in range(9)]
    for one in made:
        object.__setattr__(one, "unset", [other for other in made if other is not one])
    return made


def test_objects_of_any_kind_may_be_given_and_returned():
    x = drawn(8)
    for kind in (Anything(fails=True), Anything(), peers()):
        assert seen(lambda _other, x: -x, kind, x, reference=lambda: -x, measuring=ROTATING).checks
    for kind in (Anything(fails=True), Anything()):
        assert seen(lambda _x, kind=kind: kind, x, measuring=ROTATING).samples


def test_an_output_may_be_of_any_kind_that_can_be_written():
    x, weight = drawn(8), Parameter(drawn(8))

    @torch.inference_mode()
    def call(x, out):
        out.copy_(-x)

    with torch.inference_mode():
        inferred = drawn(8)
    for out in (weight, inferred, drawn(8).as_subclass(Tagged), drawn(16)[::2]):
        assert seen(call, x, out, out=out, reference=lambda: -x, measuring=ROTATING).checks
