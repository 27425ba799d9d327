"""Answers of people's own calls: wrong ones that hide in the first calls, and right ones that must not be suspected."""

import functools
import math
from contextlib import nullcontext

import pytest
import torch
from own_calls import drawn, seen

from pytest_flashinfer_perf import Measuring
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine import cold, graphs, measure, verification
from pytest_flashinfer_perf.engine.graphs import Replay
from pytest_flashinfer_perf.settings.settings import Checking

CHANGED = r"^of one more call with its input \(8,\) of float32 negated in place, output 0"
ONLY = Checking(refcheck="only")
X = drawn(8)


def remembering(x, out=None, known={}):  # noqa: B006 - it remembers
    """By address."""
    answer = known.setdefault(x.data_ptr(), -x)
    return answer if out is None else out.copy_(answer)


def first_calls_only(calls, otherwise):
    """Of the five that are made: one to look, one to warm up, three that are timed."""
    made = []

    def call(x, **out):
        made.append(1)
        return torch.neg(x, **out) if len(made) <= calls else otherwise(x)

    return call


@pytest.mark.parametrize("calls", [1, 2, 4])
@pytest.mark.parametrize(
    "otherwise", [lambda x: x, lambda x: torch.full_like(x, math.nan), lambda _x: None, lambda x: -x[:3]]
)
def test_the_last_timed_answer_is_looked_at_where_it_is_returned(calls, otherwise):
    with pytest.raises(WrongAnswerError, match=r"^of a timed call, "):
        seen(first_calls_only(calls, otherwise), X, reference=-X)


def test_a_call_that_stops_to_write_is_wrong():
    """Whether it stops among the timed ones, whose outputs are each at a place of their own, or after them."""
    for calls, which in ((4, "a timed call"), (5, "one more call")):
        with pytest.raises(WrongAnswerError, match=f"^of {which}, output 0: 8 elements are NaN"):
            seen(first_calls_only(calls, lambda _x: None), X, out=torch.empty(8), reference=-X)


@pytest.mark.parametrize("cold_l2", ["none", "flush", "rotate"])
@pytest.mark.parametrize("checking", [Checking(), ONLY])
def test_a_call_that_remembers_its_answers_is_wrong(cold_l2, checking):
    how = {"measuring": Measuring(iters=3, warmup=0, cold_l2=cold_l2), "checking": checking, "reference": lambda: -X}
    for more in ({}, {"out": torch.empty(8)}):
        with pytest.raises(WrongAnswerError, match=f"(?s){CHANGED}.*everything is multiplied by -1"):
            seen(functools.partial(remembering, known={}), X, **how, **more)


@pytest.mark.parametrize("answer", [torch.abs, torch.square, torch.sign, lambda x: x.norm().reshape(1)])
@pytest.mark.parametrize("x", [drawn(8), torch.ones(8), drawn(8).abs()], ids=["drawn", "ones", "positive"])
def test_some_change_shows_what_another_does_not(answer, x):
    known = {}
    wrong = pytest.raises(WrongAnswerError, match=r"of one more call with its input \(8,\) of float32 (negated|halved)")
    positive_sign = answer is torch.sign and bool((x > 0).all())
    with nullcontext() if positive_sign else wrong:
        seen(lambda x: known.setdefault(1, answer(x)), x, reference=lambda: answer(x))


def test_what_rotates_is_looked_at_where_it_was_timed(monkeypatch):
    """The arguments that are changed are those of the call that is made again, whose copies were timed as well."""
    monkeypatch.setattr(cold, "rotations", lambda *_: 4)
    forgetful = functools.partial(remembering, known=(known := {}))
    with pytest.raises(WrongAnswerError, match=CHANGED):
        seen(forgetful, X, reference=lambda: -X, measuring=Measuring(iters=9, warmup=0))
    assert len(known) == 9, "its own, and those of eight copies"


class Graph:
    """What CUDA would hold of a call: the same work in the same memory."""

    def __init__(self, call):
        self.call, self.returned, self.replays = call, call(), 0

    def replay(self):
        self.replays += 1
        self.returned.copy_(self.call())


@pytest.fixture
def captured(monkeypatch):
    """Every graph that is made; the first keeps what it returned."""
    made = []

    def capture(calls):
        first, *others = map(Graph, calls)
        made.extend((first, *others))
        return (Replay(first, first.returned), *map(Replay, others))

    monkeypatch.setattr(graphs, "capture", capture)
    monkeypatch.setattr(measure, "uses_graph", lambda *_arguments, **_how: True)
    monkeypatch.setattr(cold, "rotations", lambda *_: 3)
    return made


ROUND = Measuring(iters=4, warmup=0)


def test_of_a_graph_it_is_a_replay_that_is_looked_at(captured):
    assert seen(torch.neg, X, reference=lambda: -X, measuring=ROUND).verdict.faults == ()
    assert [graph.replays for graph in captured] == [1, 1, 1, 2], "a timed one at each place, and one more by the last"


@pytest.mark.parametrize("reference", [lambda: -X, -X], ids=["asked again", "a tensor"])
def test_a_graph_whose_replays_stop_to_work_is_wrong(captured, reference):
    """It has been called to look at it, captured four times, and replayed as often."""
    with pytest.raises(WrongAnswerError, match=r"^of one more call"):
        seen(first_calls_only(9, lambda x: 3 * x), X, reference=reference, measuring=ROUND)
    assert captured[-1].replays == 2


def test_inputs_are_as_they_were():
    """Whether they were changed for no other answer, or for another one."""
    x, least, y = drawn(8), torch.full((1,), 3e-45), drawn(8)
    before, asked = [t.clone() for t in (x, least, y)], []
    seen(lambda x, _least, y: x.sign().abs() + y, x, least, y, reference=lambda: asked.append(x.sum()) or 1 + y)
    assert all(map(torch.equal, (x, least, y), before))
    assert len(asked) == 1 + 3, "once as it is, then with x negated, with x halved, and with the least number halved"


@pytest.mark.parametrize(("checking", "calls"), [("on", 1 + 1 + 3 + 1), ("only", 2), ("off", 5)])
def test_one_more_call_is_made_and_no_other(checking, calls):
    made = []
    seen(lambda x: made.append(1) or -x, X, reference=lambda: -X, checking=Checking(refcheck=checking))
    assert len(made) == calls


HALF = torch.rand(6, 6, generator=torch.Generator().manual_seed(2)) + 0.1
MASK = torch.full((6, 6), -math.inf).triu(1)
SPD = drawn(6, 6) @ drawn(6, 6).mT + 6 * torch.eye(6)
WIDE = drawn(6, 12)
PARTS = {"k": WIDE[:, :6], "v": [WIDE[:, 6:]]}
RIGHT = {
    "one sign under a root": (torch.sqrt, HALF),
    "a factorisation": (torch.linalg.cholesky, SPD),
    "a mask": (lambda x, mask: (x + mask).softmax(-1), drawn(6, 6), MASK),
    "a mask first": (lambda mask, x: (x + mask).softmax(-1), MASK, drawn(6, 6)),
    "logits beyond a mask": (lambda mask, x: x + mask, MASK, drawn(6, 6)),
    "indices": (lambda x, i: x[i], drawn(6, 6), torch.tensor([5, 0])),
    "integers alone": (lambda x: x + 1, torch.arange(9)),
    "no input": (lambda: torch.ones(3),),
    "an even function": (torch.abs, drawn(8)),
    "twice the same": (torch.mul, WIDE, WIDE),
    "parts of one storage": (lambda p: p["k"] * 3 + p["v"][0], PARTS),
    "an expanded view": (torch.neg, drawn(1, 8).expand(4, 8)),
    "nothing in it": (torch.neg, drawn(0, 8)),
    "a leaf": (torch.sin, drawn(8).requires_grad_()),
    "bfloat16": (torch.neg, drawn(8, dtype=torch.bfloat16)),
    "fp8": (lambda x: x.float(), drawn(8, dtype=torch.float8_e4m3fn)),
    "fp8 of one sign": (lambda x: x.float(), drawn(8).abs().to(torch.float8_e5m2)),
    "complex": (torch.conj_physical, drawn(8, dtype=torch.complex64)),
    "more than float16 holds": (lambda x: x.exp().half(), torch.tensor([-20.0, 1.0])),
    "the input itself": (lambda x: x, drawn(8)),
    "of inference": (torch.neg, torch.inference_mode()(drawn)(8)),
}


@pytest.mark.parametrize("checking", [Checking(), ONLY])
@pytest.mark.parametrize("name", RIGHT)
def test_who_follows_the_inputs_is_right(name, checking):
    fn, *args = RIGHT[name]
    before = [t.detach().clone() for t in cold.tensors(args)]
    found = seen(fn, *args, reference=lambda: fn(*args), checking=checking)
    assert (found.verdict.faults, found.verdict.notes) == ((), ())
    assert all(torch.equal(a.detach(), b) for a, b in zip(cold.tensors(args), before, strict=True))


def test_a_reference_that_was_made_before_does_not_follow():
    """Neither a tensor, nor a function that has the answer ready, nor one that has prepared some inputs."""
    x, w = drawn(4, 8), drawn(8, 8)
    wanted, prepared = x @ w, w.double()
    for reference in (wanted, lambda: wanted, lambda: x.double() @ prepared, lambda: x.clone() @ prepared.float()):
        for call, *args in ((torch.matmul, x, w), (lambda w, x: x @ w, w, x)):
            assert seen(call, *args, reference=reference).verdict.faults == ()


def test_a_reference_that_cannot_answer_to_other_inputs_keeps_the_first_answer():
    x = drawn(8)
    answers = iter([-x])
    assert seen(torch.neg, x, reference=lambda: next(answers)).verdict.faults == ()


def test_a_call_in_place_is_followed_by_a_reference_that_is_asked_again_and_by_no_tensor():
    x, made = drawn(8), []
    assert seen(torch.neg_, x, reference=lambda: -x).verdict.notes == ()
    with pytest.raises(WrongAnswerError, match=r"^of one more call, output 0: 8 elements differ"):
        seen(lambda x: made.append(1) or (x.neg_() if len(made) < 6 else x), x, reference=lambda: -x)
    assert seen(torch.neg_, torch.ones(8), reference=-torch.ones(8)).verdict.notes == (verification.FIRST_ONLY,)


def test_a_reference_with_parameters_is_given_the_arguments_of_the_call():
    x, y = drawn(8), drawn(8)
    for reference in (torch.add, lambda x, y: x + y, lambda *both: sum(both), lambda x, y, scale=1: x + scale * y):
        assert seen(torch.add, x, y, reference=reference).verdict.faults == ()
    for reference in (lambda x, *, dim: x.softmax(dim), lambda scale=1: x.softmax(0) * scale):
        assert seen(torch.softmax, x, kwargs={"dim": 0}, reference=reference).verdict.faults == ()
    with pytest.raises(TypeError, match=r"^reference takes \(x\), and the call has other arguments: "):
        seen(torch.add, x, y, reference=lambda x: x)
    with pytest.raises(WrongAnswerError, match=CHANGED):
        seen(functools.partial(remembering, known={}), X, reference=torch.neg)


def test_a_reference_is_not_what_the_call_itself_writes():
    x, out = drawn(8), torch.ones(8)
    for wrong in (x, lambda: x):
        with pytest.raises(WrongAnswerError):
            seen(torch.neg_, x, reference=wrong)
    with pytest.raises(WrongAnswerError):
        seen(torch.neg, x, out=out, reference=out)


def test_an_input_that_is_changed_is_wrong_without_a_reference_too():
    def scratch(x):
        return x.neg().add(0 * x.zero_())

    changed = r"^the call changed its input \(8,\) of float32: return it, or name"
    for call, checking in ((scratch, Checking()), (scratch, ONLY), (first_calls_only(3, scratch), Checking())):
        with pytest.raises(WrongAnswerError, match=changed):
            seen(call, drawn(8), checking=checking)
    assert seen(scratch, drawn(8), checking=Checking(refcheck="off")).verdict.faults == ()


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ({"reference": "x"}, "reference must be a tensor or several of them, got str"),
        ({"reference": lambda: None}, "reference must return a tensor or several of them, got NoneType"),
        ({"out": 3}, "out must be a tensor or several of them, got int"),
        *(
            ({name: value}, f"{name} must be a finite number of at least 0, got {value!r}")
            for name in ("flops", "bytes")
            for value in (-1, math.inf, math.nan, 10**400, "many", True)
        ),
        ({"reference": (X, X)}, "the reference has 2 tensors, the call gave 1 tensor: name by out="),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(what, sentence):
    with pytest.raises((TypeError, ValueError, WrongAnswerError)) as failed:
        seen(torch.neg, X, **what)
    assert str(failed.value).startswith(sentence)


# How inputs are changed for one more call, and put back.


def test_what_is_next_to_a_view_is_left_alone():
    """Others may keep their own beside it."""
    whole = torch.arange(16.0)
    [halved] = verification.changes_of_inputs((whole[4:8],), ())
    with halved.apply():
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
        with change.apply():
            assert not torch.equal(x.view(bits), every)
        assert torch.equal(x.view(bits), every)
    assert len(list(verification.changes_of_inputs((x,), ()))) == 2
    assert len(list(verification.changes_of_inputs((every[every >= 0].view(dtype),), ()))) == 1
