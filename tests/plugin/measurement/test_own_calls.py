"""Calls that fail, and calls that have nothing to measure: a sentence, and the lines of who wrote them."""

import importlib.metadata
import itertools
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf.kernel_timing import cupti
from pytest_flashinfer_perf.kernel_timing.cupti import FIELDS
from pytest_flashinfer_perf.kernel_timing.instruments import BenchGpuTime, InstrumentError, Work
from pytest_flashinfer_perf.kernel_timing.run import Observations, Timing, trace
from pytest_flashinfer_perf.measurement import row
from pytest_flashinfer_perf.measurement.measure import Measurement
from pytest_flashinfer_perf.report import terminal
from pytest_flashinfer_perf.rows.row import Identity

KINDS = SimpleNamespace(RUNTIME=1, DRIVER=2, CONCURRENT_KERNEL=3, MEMCPY=4, MEMSET=5)


class FakeGpu:
    """A clock that ticks when it is read, launches that take 3 ticks of it, and a CUPTI that tells of both."""

    ActivityKind = KINDS
    LAUNCH = 3  # ticks that the host takes for one

    def __init__(self):
        self.now, self.records, self.completed = itertools.count(), [], None
        self.record: Callable[..., object] = SimpleNamespace
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


class CuptiRecord:
    """As cupti-python 13.0 has it: memory under a private name, of which each attribute is read anew."""

    def __init__(self, read, name, **fields):
        np = pytest.importorskip("numpy")
        self._read, self._name = read, name
        self._data = np.array([tuple(fields.values())], [(field, "u8") for field in fields]).view(np.recarray)

    def __getattr__(self, name):
        self._read[name] += 1
        return self._name if name == "name" else int(self._data[name][0])


class ApiRecord(CuptiRecord): ...


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
    ran = [range(start, start + lasting) for start, (_, lasting) in zip(starts, kernels, strict=True)]
    ticks = set().union(*ran)
    assert in_ns(timed(call, cpu)) == [(max(ticks) + 1 - min(ticks), len(ticks))] * 3


def test_records_that_do_not_give_the_spans_give_no_busy_time(gpu, cpu, monkeypatch):
    """As where each rank is told the longest span of all."""
    testing = pytest.importorskip("flashinfer.testing.utils")

    def longest(times, _):
        return (torch.tensor(times, dtype=torch.float64) + 1e-6).tolist()

    monkeypatch.setattr(testing, "aggregate_gpu_time_across_ranks", longest)
    assert in_ns(timed(lambda: gpu.launch("a"), cpu)) == [(4, None)] * 3


def test_bench_gpu_time_reads_copies_of_records_and_hardly_any_record(gpu, cpu):
    read = Counter()
    gpu.record = lambda **fields: (ApiRecord if "cbid" in fields else CuptiRecord)(read, **fields)
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
    nothing = "the call launched nothing on the GPU, as a view, a remembered answer"
    for call, sentence in (
        (lambda: gpu, nothing),
        (lambda: gpu.launch(next(names)), "the call did not launch the same kernels each time"),
    ):
        with pytest.raises(InstrumentError, match=f"^{sentence}") as failed:
            timed(call, cpu)
        assert failed.value.__suppress_context__
    gpu.finalize = partial(operator.truediv, 1, 0)
    with pytest.raises(InstrumentError, match=r"^bench_gpu_time: ZeroDivisionError: division by zero$"):
        timed(lambda: gpu.launch("a"), cpu)


def test_what_the_call_itself_raises_is_left_as_it_is(gpu, cpu):
    def broken():
        gpu.launch("a")
        raise LookupError("of my kernel")

    with pytest.raises(LookupError, match=r"^of my kernel$"):
        timed(broken, cpu)


@pytest.fixture
def row_of(gpu, cpu):
    """Of a call that launches so many kernels, the GPU idle for so many ticks before each."""

    def made(number, pause, *, cuda_graph=False, samples=(1.0, 1.0)):
        def call():
            for _ in range(number):
                gpu.launch("a", after=pause)

        with cupti.attached(gpu, lambda: None) as recorder:
            seen = Observations(trace=trace(recorder, Work((call,), flush=False, device=cpu), 1e-3))
        timing = Timing(samples, "cupti", "rotate", 6, cuda_graph=cuda_graph, seen=seen)
        return row.of_measurement(Identity(case="mine"), Measurement(timing, cpu), None, "measured")

    return made


def test_where_kernels_wait_for_their_launches_it_is_the_host_that_is_seen(row_of):
    found = row_of(100, pause=7)
    assert (found.provenance.host_bound, found.trace.launches) == (True, 100)
    [note] = found.execution.notes
    assert note.startswith("limited by the host: the GPU works in 27 % of a call, which has 100 launches: ")
    shown = list(terminal.lines([found], (), {}))
    assert any(line.endswith(" host") and len(line) <= 80 for line in shown)
    for said in (note, " ".join(" ".join(shown).split())):
        assert "--perf-cuda-graph=on replays them without " in said


SPREAD = {"samples": (1.0, 2.0)}


@pytest.mark.parametrize(
    ("number", "pause", "how", "is_bound"),
    [
        (100, 0, {}, False),
        (1, 20, SPREAD, False),
        (100, 20, {"cuda_graph": True}, False),
        (2, 0, SPREAD, False),
        (100, 0, SPREAD, True),  # many launches that spread are the host's too
    ],
)
def test_where_they_do_not_it_is_not(row_of, number, pause, how, is_bound):
    found = row_of(number, pause, **how)
    assert (found.provenance.host_bound, bool(found.execution.notes)) == (is_bound, is_bound)
    assert ("host" in "".join(terminal.lines([found], (), {}))) == is_bound


FAILING = """
import torch
X = torch.ones(8)

def broken(x, *, deep=False):
    if deep:
        torch.empty(2).reshape(3)
    raise LookupError("of my kernel")

def late(x, seen=[]):
    seen.append(x)
    return x.neg() if len(seen) < 3 else broken(x)

def chained(x):
    try:
        broken(x)
    except LookupError as error:
        raise OSError("my own words") from error

def test_function(perf): perf.time(broken, X)
def test_timed(perf): perf.time(late, X)
def test_reference(perf): perf.time(torch.neg, X, reference=lambda: broken(None))
def test_deep(perf): perf.time(broken, X, deep=True)
def test_builtin(perf): perf.time(torch.neg, X, X)
def test_chained(perf): perf.time(chained, X)
"""
SHOWN = """
>*perf.time(broken, X)
>*raise LookupError(*
E *LookupError: of my kernel
>*perf.time(late, X)
*else broken(x)
>*raise LookupError(*
>*reference=lambda: broken(None))
>*raise LookupError(*
>*deep=True)
>*torch.empty(2).reshape(3)
E *RuntimeError: shape *
>*perf.time(torch.neg, X, X)
E *TypeError: neg() takes 1 *
>*broken(x)
>*raise LookupError(*
>*perf.time(chained, *
>*raise OSError(*
E *OSError: my own words
"""


@pytest.mark.parametrize("style", ["auto", "short"])
def test_the_authors_lines_are_shown_and_none_of_ours_but_in_a_full_trace(session, style):
    done = session(f"--tb={style}", test_own=FAILING)
    assert done.outcomes == {"failed": 6}
    assert not re.search(r"pytest_flashinfer_perf.*\.py|contextlib", done.out)
    if style == "auto":
        done.says(*SHOWN.split("\n")[1:-1])
        session("-k", "test_function", "--full-trace").says("*measure.py:*", "*verification.py:*", "*test_own.py:*")


def test_a_call_that_launches_nothing_fails_its_test_in_its_own_line(gpu, session, monkeypatch):
    monkeypatch.setattr(BenchGpuTime, "missing", lambda *_: None)
    view = "import torch\ndef test_view(perf): perf.time(lambda x: x[:2], torch.ones(8))\n"
    done = session("--perf-instrument=cupti", "--perf-cold-l2=none", test_own=view)
    assert done.outcomes == {"failed": 1}
    done.says(">*perf.time(lambda x: x[[]:2], torch.ones(8))", "E *: the call launched nothing on the *")
    assert len(done.out.splitlines()) < 40
    assert not gpu.records


PLANTED = """
from pytest_flashinfer_perf.routines.gemm.bmm import bmm_bf16

@bmm_bf16.backend("planted")
def _planted(p, x, how):
    raise LookupError("no such plan")
"""
BMM = """
import pytest

@pytest.mark.perf_cases("bmm_bf16", "--batch_size 1 --m 4 --n 16 --k 16")
def test_bmm(perf, case): perf(case)
"""


def test_the_lines_of_a_backend_are_its_authors(session):
    done = session("--perf-backends=planted", conftest=PLANTED, test_own=BMM)
    done.says(">*perf(case)", ">*raise LookupError*", "E *LookupError: no such plan")
    assert not re.search(r"pytest_flashinfer_perf.*\.py", done.out)
