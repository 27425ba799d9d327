"""What a call costs the host, on a queue and by a clock that go as the tests say."""

import json
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.extensions.host import host
from pytest_flashinfer_perf.extensions.host.host import QUEUE, Timer
from pytest_flashinfer_perf.extensions.host.host_calls import Counts
from pytest_flashinfer_perf.extensions.host.host_time import REFERENCE_US, HostLine, HostTime, places
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.fields import FieldError

ALLOWED = os.sched_getaffinity(0)


class Machine:
    """A clock, a GPU that is busy until some moment, and calls that take the host and the GPU so long.

    The host takes `slowness` times as long for everything, which may depend on the moment.
    """

    def __init__(self, on_host, on_device, *, launches=1, waits=False, room=2 * QUEUE, slowness=lambda _now: 1.0):
        self.on_host, self.on_device, self.waits = on_host, on_device, waits
        self.launches, self.room = launches, room
        self.now = self.busy_until = self.idled = 0.0
        self.queued, self.longest_queue, self.blocked = 0, 0, 0
        self.made, self.slowness = [], slowness

    def clock(self):
        return self.now

    def drain(self):
        self.now, self.queued = max(self.now, self.busy_until), 0

    def hold(self, seconds):
        over = self.busy_until = max(self.now, self.busy_until) + seconds
        return lambda: self.now < over

    def __call__(self):
        took = self.on_host(len(self.made)) if callable(self.on_host) else self.on_host
        self.made.append(took)
        self.now += took * self.slowness(self.now)
        self.queued += self.launches
        self.longest_queue = max(self.longest_queue, self.queued)
        self.idled += max(0.0, self.now - self.busy_until)
        self.busy_until = max(self.now, self.busy_until) + self.on_device
        if self.waits:
            self.drain()

    def reference(self):
        self.now += REFERENCE_US * 1e-6 * self.slowness(self.now)


def timer(machine):
    return Timer(machine, machine.clock, machine.reference)


def test_host_times_are_comparable_by_what_their_core_takes_for_a_reference():
    seen = HostTime(50.0, (60.0, 50.0), waits=False, plan_us=9.0, plans_us=(10.0, 9.0), references_us=(40.0, 50.0))
    assert (seen.comparable_us, seen.comparable_plan_us) == (25.0, None)
    assert HostTime(1.0, (0.0,), waits=False, references_us=(1.0,)).comparable_us is None


def timed(machine):
    target = Target(machine, plan=machine)
    return host._timed(timer(machine), target, machine.on_device, machine.launches)


@given(st.floats(2e-6, 5e-3), st.floats(1e-6, 5e-3), st.integers(1, 300))
def test_a_call_costs_what_enqueuing_it_takes_whatever_the_gpu_takes(on_host, on_device, launches):
    machine = Machine(on_host, on_device, launches=launches)
    seen = timed(machine)
    assert not seen.waits
    assert seen.host_us == pytest.approx(1e6 * on_host)
    assert machine.longest_queue <= max(QUEUE, 3 * launches), "the next one would have waited for room"


def test_the_gpu_is_never_idle_while_calls_are_timed():
    for hold, idles in ((0.0, True), (host._hold(20 * 50e-6), False)):
        machine = Machine(50e-6, 5e-6)
        assert timer(machine)._round(machine, 20, hold).held
        assert bool(machine.idled) == idles, "without a hold it waits for the host"


def test_a_call_that_waits_for_the_gpu_is_timed_with_its_own_wait_and_not_with_the_holds():
    seen = timed(Machine(20e-6, 300e-6, waits=True))
    assert seen.waits
    assert seen.host_us == pytest.approx(320)


def test_a_few_late_calls_do_not_count_and_ten_more_microseconds_are_seen_as_ten():
    for us in (40, 50):
        late = lambda n, us=us: us * 1e-6 if n % 10 else 4e-3  # noqa: E731
        assert timed(Machine(late, 5e-6)).host_us == pytest.approx(us)


@given(st.floats(1e-6, 5e-3))
def test_the_first_call_of_a_round_is_cold_and_does_not_count(on_device):
    machine = Machine(lambda _n: 20e-6 if machine.queued else 100e-6, on_device)
    seen = host._timed(timer(machine), Target(machine), on_device, 1)
    assert seen.host_us == pytest.approx(20)
    assert seen.comparable_us == pytest.approx(20)


@given(st.lists(st.sampled_from([1.0, 1.7, 2.2]), min_size=1, max_size=4), st.floats(5e-6, 300e-6))
def test_cores_of_different_speed_change_nothing_that_is_compared(speeds, on_host):
    core = [0]
    machine = Machine(on_host, 5e-6, slowness=lambda _now: speeds[core[0]])

    def move(done):
        core[0] = int(done * len(speeds))

    target = Target(machine, plan=machine)
    moving = Timer(machine, machine.clock, machine.reference, move)
    seen = host._timed(moving, target, machine.on_device, machine.launches)
    assert seen.comparable_us == pytest.approx(1e6 * on_host)
    assert seen.comparable_plan_us == pytest.approx(1e6 * on_host)


@given(st.floats(1e-7, 10.0), st.integers(1, 2000))
def test_rounds_fit_into_the_time_and_into_the_queue(each, launches):
    rounds, calls = host.shares(each, launches)
    assert host.FEWEST_ROUNDS <= rounds <= host.ROUNDS
    assert 1 <= calls <= host.CALLS
    assert calls == 1 or calls * launches <= QUEUE
    assert rounds * calls * each <= host.MOST_SECONDS * (1 + 1e-9) or (calls == 1 and rounds == host.FEWEST_ROUNDS)
    few = calls <= host.FEWEST_CALLS or rounds == host.FEWEST_ROUNDS
    assert few or rounds * calls * each <= host.SECONDS * (1 + 1e-9)


def test_a_plan_has_its_own_waits_and_none_of_what_was_enqueued_before():
    machine = Machine(100e-6, 30e-6, waits=True)
    machine.busy_until = 1.0
    medians = [plan.median for plan in timer(machine).planned(machine)]
    assert medians == pytest.approx([130e-6] * len(medians))


def test_rounds_are_shared_out_to_the_cores(monkeypatch):
    moves = []
    monkeypatch.setattr(host, "_spread_over_cores", lambda cores: [cores[0], cores[-1]])
    with host.moving_over_cores() as move:

        def moved(done):
            move(done)
            moves.append(*os.sched_getaffinity(0))

        machine = Machine(50e-6, 5e-6)
        Timer(machine, machine.clock, machine.reference, moved).enqueued(machine, launches=1, on_device=5e-6)
    assert moves == [min(ALLOWED)] * (host.ROUNDS // 2) + [max(ALLOWED)] * (host.ROUNDS // 2)


def test_all_cores_and_threads_may_be_used_again():
    with pytest.raises(ZeroDivisionError), host.moving_over_cores() as move:
        move(1 // 0)
    assert os.sched_getaffinity(0) == ALLOWED
    assert [len(host._spread_over_cores(list(range(n)))) for n in (1, 2, 4, 5, 128)] == [1, 2, 4, 3, 4]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with host._one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_what_is_written_is_read_again_and_nothing_is_invented_on_a_cpu(cpu):
    lines = (HostLine("a.py:1 in f", 2), HostLine(None, 1))
    seen = HostTime(41.5, (41.0, 42.0), False, 130.0, (130.0,), 1, lines=lines)
    assert fields.read(HostTime, json.loads(json.dumps(fields.written(seen))), "host") == seen
    assert places(seen) == ["2 x a.py:1 in f", "1 x a line that could not be seen"]
    with pytest.raises(FieldError, match="host lacks host_us"):
        fields.read(HostTime, {"rounds_us": [1.0]}, "host")
    assert host.measured(None, cpu, 1e-6, Counts()) == (None, "")
