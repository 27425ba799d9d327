"""A child process whose workers end, hang and retire."""

import os
import signal
from contextlib import closing

import pytest
from planted_children import Squares

from pytest_flashinfer_perf.extensions.fuzz.child_process import (
    RETIRED,
    ChildProcess,
    Ended,
    StartError,
)


@pytest.fixture(params=[True, False], ids=["forks", "cannot fork"])
def child(request):
    with closing(ChildProcess(Squares(request.param))) as made:
        yield made


def test_a_worker_answers_until_it_retires_ends_or_hangs_and_the_next_one_goes_on(child):
    first, four = child.ask(2, 60)
    assert (four, child.ask(3, 60)) == (4, (first, 9))
    assert child.ask(10, 60) == (first, 100)
    second, one = child.ask(1, 60)
    assert one == 1
    assert second != first
    assert child.ask(-1, 60) == Ended(3)
    assert child.output() == "asked for -1\n"
    third, _ = child.ask(1, 60)
    assert child.ask(0, 0) == Ended(None)
    fourth, _ = child.ask(4, 60)
    assert len({first, second, third, fourth}) == 4


def test_a_request_that_was_not_read_in_time_is_not_answered_by_the_next_worker(child):
    worker, _ = child.ask(1, 60)
    os.kill(worker, signal.SIGSTOP)
    assert child.ask(2, 0) == Ended(None)
    assert child.ask(3, 60)[1] == 9


def test_a_child_that_does_not_start_shows_what_it_printed():
    with (
        closing(ChildProcess(Squares.load)) as child,
        pytest.raises(StartError, match=r"exit code 1\n(.*\n)*.*Attribute"),
    ):
        child.ask(1, 60)


class Retires:
    """A program that ends as a worker that retires does, whenever it is started."""

    def load(self):
        os._exit(RETIRED)


def test_a_child_that_always_retires_before_it_begins_is_not_started_for_ever():
    with closing(ChildProcess(Retires())) as child, pytest.raises(StartError):
        child.ask(1, 60)
