"""What a judge believes of a time, by a scripted clock, and the inputs by which it finds who remembers answers."""

import datasets
import pytest
import torch
from flashinfer_bench.data import EvaluationStatus
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.engine.timing import Timing
from pytest_flashinfer_perf.extensions.trace_sets import outside_clock
from pytest_flashinfer_perf.extensions.trace_sets.evaluators import DefaultEvaluator
from pytest_flashinfer_perf.extensions.trace_sets.siblings import PAIRS, siblings
from pytest_flashinfer_perf.extensions.trace_sets.solution import ImpossibleTimeError, SolutionError, Task
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.machine.load import Contention

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32, torch.int8]


def drawn(count, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator).mul(50).to(dtype)


def bits(tensor):
    return tensor.view(torch.uint8).view(len(tensor), -1).tolist()


@given(st.integers(16, 300), st.sampled_from(DTYPES), st.integers(0, 99))
def test_a_sibling_has_the_same_elements_of_which_a_few_in_the_middle_have_changed_places(count, dtype, seed):
    inputs = [drawn(count, dtype, seed), 0.5, drawn(count, dtype, seed + 1)]
    found = siblings(inputs, [0, 1], lambda other: bits(other[0]) != bits(inputs[0]))
    assert found.pairs == {0: 1}
    before, other = bits(inputs[0]), found.of(inputs)
    after, end = bits(other[0]), count // 4
    assert sorted(after) == sorted(before)
    assert [after[at] for at in (*range(end), *range(-end, 0))] == [before[at] for at in (*range(end), *range(-end, 0))]
    assert sum(one != two for one, two in zip(before, after, strict=True)) == 2
    assert other[1:] == inputs[1:]


@given(st.integers(0, 99))
def test_its_sum_is_the_same_to_the_last_bit(seed):
    inputs = [drawn(1 << 12, torch.float32, seed)]
    found = siblings(inputs, [0], lambda _: True)
    assert found.of(inputs)[0].sum() == inputs[0].sum()


@pytest.mark.parametrize("enough", PAIRS)
def test_as_few_change_places_as_change_the_answer(enough):
    inputs = [torch.arange(9999.0)]
    moved = lambda other: int((other[0] != inputs[0]).sum())  # noqa: E731
    found = siblings(inputs, [0], lambda other: moved(other) >= 2 * enough)
    assert found.pairs == {0: enough}
    assert moved(found.of(inputs)) == 2 * enough


def test_inputs_that_change_no_answer_have_no_siblings():
    inputs = [torch.arange(99.0), torch.ones(3), 7]
    found = siblings(inputs, [0, 1, 2], lambda _: False)
    assert (found.pairs, found.of(inputs)) == ({}, inputs)


class Scripted:
    """A solution whose calls take what `seconds` says of their inputs, and answer what `answer` does."""

    def __init__(self, answer, seconds):
        self._answer, self._seconds, self._given = answer, seconds, []

    def give(self, contents):
        self._given = contents

    def answers(self, _fewest, *, captured):
        assert not captured
        took = sum(self._seconds(*one) for one in self._given)
        return took, [(self._answer(*one),) for one in self._given]


class Memo:
    """Answers by a key of the inputs, and at once where it has one."""

    def __init__(self, key):
        self.key, self.known, self.timed = key, {}, set()

    def __call__(self, a, b):
        return self.known.setdefault(self.key(a, b), a @ b.T)

    def seconds(self, a, b):
        is_known = self.key(a, b) in self.timed
        self.timed.add(self.key(a, b))
        return 1e-6 if is_known else 1e-3


BUSY = Contention(seconds=1.0, cores=2, waited=0.9, load=6.0)
HONEST = (lambda a, b: a @ b.T, lambda *_: 1e-3)
BY_ALL = Memo(lambda a, b: (bytes(a.numpy()), bytes(b.numpy())))
BY_A_NUMBER = Memo(lambda a, b: float(a[0, 0]) + float(b.sum()))
SENTENCES = {
    "a time that fits": (*HONEST, 1e-3, None, None),
    "one that is too short by less than half": (*HONEST, 0.6e-3, None, None),
    "one that is too short": (*HONEST, 1e-6, None, "impossible time: 1.000 us per call by its own clock, 1.000 ms by"),
    "a memo of all": (BY_ALL, BY_ALL.seconds, 1e-6, None, "remembers answers: a call takes "),
    "a memo": (BY_A_NUMBER, BY_A_NUMBER.seconds, 1e-3, None, "C: "),
    "a busy machine": (*HONEST, 1e-3, BUSY, "time not confirmed: others used this machine: load 6 on 2 cores"),
    "a busy machine and a doubt": (
        *HONEST,
        1e-6,
        BUSY,
        "time not confirmed: others used this machine: load 6 on 2 cores",
    ),
    "a busy machine and a memo": (BY_A_NUMBER, BY_A_NUMBER.seconds, 1e-3, BUSY, "C: "),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_what_is_believed_of_a_time(judge, name):
    answer, seconds, reported, contention, sentence = SENTENCES[name]
    job = judge.job(datasets.GEMM, datasets.RIGHT["gemm_n8_k16"])
    task = Task(job.definition, job.workload, job.root, job.config, 1, devices.find("cpu"), job.measuring)
    evaluator = DefaultEvaluator()
    timing = Timing((reported,), "wall", "flush", 1, cuda_graph=False, contention=contention)
    looks_alike = evaluator.build_baseline(task).siblings
    assert set(looks_alike.pairs) == {0, 1}
    words = (evaluator, task, Scripted(answer, seconds), [timing], looks_alike)
    if sentence is None:
        outside_clock.confirm(*words)
        return
    with pytest.raises((ImpossibleTimeError, SolutionError)) as error:
        outside_clock.confirm(*words)
    assert str(error.value).startswith(sentence)
    statuses = {"C": EvaluationStatus.INCORRECT_NUMERICAL, "time not confirmed": EvaluationStatus.RUNTIME_ERROR}
    assert getattr(error.value, "status", None) == statuses.get(sentence.partition(":")[0])


def test_a_solution_that_was_interrupted_is_believed_by_its_shortest_round(judge):
    interrupted = iter([1.0] * 5)
    job = judge.job(datasets.GEMM, datasets.RIGHT["gemm_n8_k16"])
    task = Task(job.definition, job.workload, job.root, job.config, 1, devices.find("cpu"), job.measuring)
    timing = Timing((1e-3,), "wall", "flush", 1, cuda_graph=False)
    solution = Scripted(HONEST[0], lambda *_: next(interrupted, 1e-3))
    outside_clock.confirm(DefaultEvaluator(), task, solution, [timing], siblings([], [], lambda _: True))
