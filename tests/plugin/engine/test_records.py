"""Records of CUPTI whose fields are read together, those that are left as they are, and what bench_gpu_time gives."""

import importlib.metadata
import itertools
import operator
import sys
from collections import Counter
from enum import IntEnum
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf.engine.cupti import (
    BUFFER_BYTES,
    FIELDS,
    Copied,
    activities,
    copied,
    launched_in,
    read_together,
)
from pytest_flashinfer_perf.engine.instruments import BenchGpuTime, InstrumentError, Work

np = pytest.importorskip("numpy")

API = np.dtype(
    [("kind", "i4"), ("cbid", "u4"), ("start", "u8"), ("end", "u8"), ("correlation_id", "u4"), ("return_value", "u4")]
)
KERNEL = np.dtype([("kind", "i4"), ("start", "u8"), ("end", "u8"), ("correlation_id", "u4"), ("grid_x", "i4")])


class Api:
    """A record as cupti-python 13.0 has it: memory under a private name, of which each attribute is read anew."""

    layout = API

    def __init__(self, *values):
        self._data = np.array([values], self.layout).view(np.recarray)

    def __getattr__(self, name):
        if name not in self.layout.names:
            raise AttributeError(name)
        return int(self._data[name][0])


class Kernel(Api):
    layout, name = KERNEL, "a kernel"


u4, u8 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
apis = st.builds(Api, st.integers(1, 60), u4, u8, u8, u4, u4)
kernels = st.builds(Kernel, st.integers(1, 60), u8, u8, u4, st.integers(1, 9))


@given(st.lists(apis | kernels, max_size=20))
def test_copies_are_the_records_in_their_order(own):
    copies = copied(own)
    assert [type(copy) for copy in copies] == [Copied] * len(own)
    for copy, record in zip(copies, own, strict=True):
        names = (*record.layout.names, *(["name"] if isinstance(record, Kernel) else []))
        assert [getattr(copy, name) for name in names] == [getattr(record, name) for name in names]


def test_fields_of_a_copy_are_not_read_again_and_those_that_the_record_lacks_are_missing():
    record = Api(4, 211, 10, 13, 7, 0)
    (copy,) = copied([record])
    record._data["start"] = 11
    assert (copy.start, record.start) == (10, 11)
    (copy,) = copied([Kernel(10, 1, 2, 3, 4)])
    with pytest.raises(AttributeError, match="cbid"):
        _ = copy.cbid


class Moved(Api):
    """Says something else than its memory."""

    end = 5


class Shorter(Api):
    """Without a layout of fields."""

    def __init__(self, *values):
        self._data = np.array(values, "u8")


@pytest.mark.parametrize("unlike", [SimpleNamespace(kind=4), Moved(4, 211, 10, 13, 7, 0), Shorter(4, 10, 13)])
def test_records_of_another_form_stay_as_they_are_beside_those_that_are_copied(unlike):
    first, second, third = copied([unlike, Api(4, 211, 10, 13, 7, 0), unlike])
    assert first is third is unlike
    assert (type(second), second.end) == (Copied, 13)


def test_callbacks_get_copies_while_it_lasts_and_cupti_is_put_back(monkeypatch):
    registered, shown, seen = [], [], []
    module = ModuleType("cupti")
    cupti = module.cupti = SimpleNamespace(activity_register_callbacks=lambda *both: registered.append(both))
    register = cupti.activity_register_callbacks
    monkeypatch.setitem(sys.modules, "cupti", module)

    def broken():
        with read_together(shown.extend):
            cupti.activity_register_callbacks("requested", seen.extend)
            raise LookupError

    with pytest.raises(LookupError):
        broken()
    cupti.activity_register_callbacks("requested later", "as it is")
    assert cupti.activity_register_callbacks is register
    (requested, completed), later = registered
    completed([Api(4, 211, 10, 13, 7, 0)])
    assert (requested(), later, shown) == ((BUFFER_BYTES, 0), ("requested later", "as it is"), seen)
    assert type(seen[0]) is Copied


moments = st.integers(0, 40)
spans = st.lists(st.tuples(moments, moments).map(lambda pair: tuple(sorted(pair))), max_size=6)


@given(spans, st.lists(st.tuples(moments, st.integers(1, 9)), max_size=12))
def test_a_call_has_what_was_launched_from_its_begin_to_its_end(calls, launches):
    expected = [{which for when, which in launches if start <= when <= end} for start, end in calls]
    assert launched_in(calls, launches) == expected


def test_what_ran_on_the_device_has_its_name():
    kinds = IntEnum("ActivityKind", "RUNTIME DRIVER CONCURRENT_KERNEL MEMCPY MEMSET MEMCPY2")
    times = {"start": 1, "end": 3, "correlation_id": 7, "name": "norm"}
    records = [SimpleNamespace(**times, kind=kind) for kind in kinds]
    seen = list(activities(SimpleNamespace(ActivityKind=kinds), records))
    assert [one.name for one in seen] == ["norm", "MEMCPY", "MEMSET", "MEMCPY2"]
    assert {(one.start, one.end, one.correlation_id) for one in seen} == {(1, 3, 7)}


# The same records as FlashInfer's own bench_gpu_time meets them, on a CPU whose GPU is a clock.

KINDS = SimpleNamespace(RUNTIME=1, DRIVER=2, CONCURRENT_KERNEL=3, MEMCPY=4, MEMSET=5, MEMCPY2=6)


class FakeGpu:
    """A clock that ticks when it is read, launches that take 3 ticks of it, and a CUPTI that tells of both."""

    ActivityKind = KINDS
    LAUNCH = 3  # ticks that the host takes for one

    def __init__(self):
        self.now, self.records, self.completed = itertools.count(), [], None
        self.record = SimpleNamespace
        self.activity_enable = self.activity_disable = self.finalize = lambda *_: None
        self.get_timestamp = partial(next, self.now)

    def activity_register_callbacks(self, _requested, completed):
        self.completed = completed

    def activity_flush_all(self, _flag):
        done, self.records = self.records, []
        self.completed(done)

    def launch(self, name, after=0, lasting=LAUNCH):
        """`after` is how long the host takes before."""
        start = [next(self.now) for _ in range(after + 1)][-1]
        shared = {"correlation_id": start, "start": start, "end": start + lasting, "name": name}
        self.records.append(self.record(kind=KINDS.RUNTIME, cbid=0, **shared))
        self.records.append(self.record(kind=KINDS.CONCURRENT_KERNEL, **shared))
        [next(self.now) for _ in range(self.LAUNCH)]


@pytest.fixture
def gpu(monkeypatch):
    """For FlashInfer's own bench_gpu_time, on a CPU."""
    testing = pytest.importorskip("flashinfer.testing.utils")
    made, module = FakeGpu(), ModuleType("cupti")
    module.cupti = made
    monkeypatch.setitem(sys.modules, "cupti", module)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "13.0.0" if "cupti" in name else real(name))
    monkeypatch.setattr(testing, "get_l2_cache_size", lambda _device: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    event = SimpleNamespace(record=lambda: None, elapsed_time=lambda _other: 1.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_how: event)
    return made


def timed(call, cpu):
    return BenchGpuTime("cupti").sample(Work((call,), flush=False, device=cpu), 3, 0)


def in_ns(samples):
    return [tuple(None if seconds is None else round(1e9 * seconds) for seconds in sample) for sample in samples]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_of_each_call_the_time_in_which_its_kernels_run_is_known(gpu, cpu, kernels):
    """Kernels launched so many ticks after the last launch, which last so many: they may overlap."""

    def call():
        for after, lasting in kernels:
            gpu.launch("a", after, lasting)

    starts = itertools.accumulate(after + 1 + gpu.LAUNCH for after, _ in kernels)
    ticks = {start + tick for start, (_, lasting) in zip(starts, kernels, strict=True) for tick in range(lasting)}
    assert in_ns(timed(call, cpu)) == [(max(ticks) + 1 - min(ticks), len(ticks))] * 3


def test_records_that_do_not_give_the_spans_give_no_busy_time(gpu, cpu, monkeypatch):
    """As where each rank is told the longest span of all."""
    testing = pytest.importorskip("flashinfer.testing.utils")
    longest = lambda times, _: (torch.tensor(times, dtype=torch.float64) + 1e-6).tolist()  # noqa: E731
    monkeypatch.setattr(testing, "aggregate_gpu_time_across_ranks", longest)
    assert in_ns(timed(lambda: gpu.launch("a"), cpu)) == [(4, None)] * 3


class Noted(Api):
    """Notes each field that is read of it."""

    def __init__(self, read, name, **fields):
        self._read, self._name, self.layout = read, name, np.dtype([(field, "u8") for field in fields])
        super().__init__(*fields.values())

    def __getattr__(self, name):
        self._read[name] += 1
        return self._name if name == "name" else super().__getattr__(name)


class NotedKernel(Noted): ...


def test_bench_gpu_time_reads_copies_of_records_and_hardly_any_record(gpu, cpu):
    read = Counter()
    gpu.record = lambda **fields: (Noted if "cbid" in fields else NotedKernel)(read, **fields)
    assert in_ns(timed(lambda: gpu.launch("a"), cpu)) == [(3, 3)] * 3
    seldom = dict.fromkeys(FIELDS, 2) | {"cbid": 1}  # once of each type, to compare it with the memory
    assert read == seldom | {"name": 9}


def test_an_older_bench_gpu_time_flushes_by_the_name_that_it_has(monkeypatch, cpu):
    """FlashInfer 0.5.3's has the same parameters, but for this one."""
    testing, seen = pytest.importorskip("flashinfer.testing"), {}
    older = lambda _fn, l2_flush=True, **known: seen.update(known, l2_flush=l2_flush) or [1e-3]  # noqa: E731
    monkeypatch.setattr(testing, "bench_gpu_time", older)
    for flush in (True, False):
        assert BenchGpuTime("events").sample(Work((list,), flush=flush, device=cpu), 1, 0) == [(1e-6, None)]
        assert seen["l2_flush"] is flush
    assert "cold_l2_cache" not in seen


def test_a_flashinfer_that_is_too_old_to_measure_by_is_a_sentence(monkeypatch, hopper):
    testing = pytest.importorskip("flashinfer.testing")
    monkeypatch.setattr(testing, "bench_gpu_time", list)
    too_old = "this flashinfer is too old: its bench_gpu_time has no enable_cupti and no l2_flush; use --perf-"
    assert BenchGpuTime("events").missing(hopper) == f"{too_old}instrument=wall"
    monkeypatch.delattr(testing, "bench_gpu_time")
    assert BenchGpuTime("events").missing(hopper).endswith(" has no testing.bench_gpu_time")


def test_what_the_instrument_meets_is_a_sentence_without_its_lines(gpu, cpu):
    names = itertools.cycle("ab")
    for call, sentence in (
        (lambda: gpu, "the call launched nothing on the GPU, as a view, a remembered answer"),
        (lambda: gpu.launch(next(names)), "the call did not launch the same kernels each time"),
    ):
        with pytest.raises(InstrumentError, match=f"^{sentence}") as failed:
            timed(call, cpu)
        assert failed.value.__suppress_context__
    with pytest.raises(ZeroDivisionError):  # the call's own is left as it is
        timed(lambda: [gpu.launch("a"), 1 // 0], cpu)
    gpu.finalize = partial(operator.truediv, 1, 0)
    with pytest.raises(InstrumentError, match=r"^bench_gpu_time: ZeroDivisionError: division by zero$"):
        timed(lambda: gpu.launch("a"), cpu)


def test_a_call_that_launches_nothing_fails_its_test_in_its_own_line(gpu, session, monkeypatch):
    monkeypatch.setattr(BenchGpuTime, "missing", lambda *_: None)
    view = "import torch\ndef test_view(perf): perf.time(lambda x: x[:2], torch.ones(8))\n"
    done = session("--perf-instrument=cupti", "--perf-cold-l2=none", test_own=view)
    assert done.outcomes == {"failed": 1}
    done.says(">*perf.time(lambda x: x[[]:2], torch.ones(8))", "E *: the call launched nothing on the *")
    assert len(done.out.splitlines()) < 40
    assert not gpu.records
