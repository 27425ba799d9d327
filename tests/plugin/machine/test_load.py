"""What else a machine did while calls were timed, by the counters of Linux."""

import itertools
import multiprocessing
import os
import sys
import time

import pytest

from pytest_flashinfer_perf.machine import load
from pytest_flashinfer_perf.machine.load import Contention, LoadWatch, Reading


def reading(at, **known):
    counted = {"cores": 2, "waited": {"1": 0.0, "2": 0.0}, "used": 0.0, "others": 0}
    return Reading(at, **{"used_by_process": 0.0, **counted, **known})


def seen(*spans):
    return load.during([LoadWatch([span]) for span in spans])


def after(**known):
    return seen((reading(10.0), reading(12.0, **known)))


@pytest.mark.parametrize(
    ("known", "field", "expected"),
    [
        ({"waited": {"1": 0.1, "2": 0.5}}, "waited", 0.25),
        ({"waited": {"1": 0.1, "3": 0.4}}, "waited", 0.2),  # a thread that was not there before
        ({"waited": {}}, "waited", None),
        ({"used": 3.0, "used_by_process": 2.0}, "taken", 0.25),
        ({"used": 1.9, "used_by_process": 2.0}, "taken", 0.0),  # counted in ticks
        ({"used": None}, "taken", None),
        ({"others": 6}, "load", 3.0),
    ],
)
def test_shares_are_of_the_time_that_was_watched(known, field, expected):
    assert getattr(after(**known), field) == pytest.approx(expected)


def test_all_spans_count_together():
    busy, idle = ((reading(0.0), reading(1.0, waited={"1": waited})) for waited in (0.8, 0.0))
    assert seen(busy, idle).waited == pytest.approx(0.4)
    short = (reading(0.0), reading(0.01))
    alone, beside = (seen((reading(0.0, others=ready), reading(0.01, others=ready))) for ready in (0, 1))
    assert (alone.taken, beside.taken) == (0.0, 0.5), "too short for hundredths of a second: what was ready to run"
    assert beside.is_loaded
    assert seen((reading(0.0, others=None), reading(0.01, others=None))).taken is None
    assert seen(short, (reading(0.99), reading(1.0, used=1.0))).taken == pytest.approx(0.5), "and between the two"
    assert load.during([]) is None
    assert load.during([LoadWatch()]) is None, "an instrument of the GPU"


@pytest.mark.parametrize(
    ("known", "share"),
    [
        ({"waited": 0.1, "taken": 0.3}, 0.3),
        ({"waited": 0.4, "taken": 0.3}, 0.4),
        ({}, 0.0),
    ],
)
def test_the_larger_share_counts(known, share):
    seen = Contention(seconds=1.0, cores=2, **known)
    assert seen.share == pytest.approx(share)
    assert seen.is_loaded is (share > load.TOO_LOADED)


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        ({"waited": 0.9, "load": 5.8}, "others used this machine: load 6 on 2 cores"),
        ({"taken": 0.9, "load": 1.0, "cores": 1}, "others used this machine: load 1 on 1 core"),
        ({"taken": 0.3, "load": 0.5}, "others used this machine: 30 % of the time of 2 cores was not this process's"),
    ],
)
def test_a_busy_machine_is_a_sentence(known, sentence):
    seen = Contention(**{"seconds": 1.0, "cores": 2, **known})
    assert (seen.is_loaded, seen.sentence) == (True, sentence)


def _spin():
    while True:
        pass


@pytest.mark.more
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_a_process_on_the_same_core_is_seen():
    allowed = os.sched_getaffinity(0)
    other = multiprocessing.get_context("fork").Process(target=_spin, daemon=True)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        other.start()
        watch, end = LoadWatch(), time.perf_counter() + 0.5
        with watch.watched():
            while time.perf_counter() < end:
                pass
    finally:
        other.kill()
        os.sched_setaffinity(0, allowed)
    seen = load.during([watch])
    assert seen.is_loaded
    assert seen.waited > load.TOO_LOADED
    assert seen.taken > load.TOO_LOADED
    assert seen.cores == 1, "of the one that it may use"
    assert "of the time of 1 core was not this process's" in seen.sentence


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts it")
def test_the_counters_of_linux_are_read_of_the_cores_that_may_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    monkeypatch.setattr(load, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(load, "TASKS", tmp_path / "tasks")
    task = tmp_path / "tasks" / "7"
    task.mkdir(parents=True)
    (task / "schedstat").write_text("5 2000000000 1\n")
    (task / "stat").write_text("7 (a) b) R 1 1\n")
    assert load.read().used is None, "of a system that does not count cores"
    ticks = os.sysconf("SC_CLK_TCK")
    counts = [3 * ticks, 0, 2 * ticks, 100 * ticks, 0, 0, 0, ticks, 0, 0]
    (tmp_path / "stat").write_text(f"cpu0 {'9 ' * 10}\ncpu1 {' '.join(map(str, counts))}\nprocs_running 4\n")
    seen = load.read()
    assert (seen.cores, seen.waited) == (1, {"7": 2.0})
    assert seen.used == 6.0, "what is not idle, the hypervisor included"
    assert seen.others is None if os.cpu_count() != 1 else seen.others == 3


def test_a_system_without_counters_says_that_it_does_not_know(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(load.time, "perf_counter", itertools.count().__next__)
    watch = LoadWatch()
    with watch.watched():
        pass
    seen = load.during([watch])
    assert (seen.unknown, seen.share, seen.is_loaded) == (load.LOAD_UNKNOWN, 0.0, False)
    assert Contention(seconds=1.0, cores=2, waited=0.0).unknown == ""
