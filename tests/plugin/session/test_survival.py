"""What becomes of the others when a case ends badly and nobody supervises, and how long a case may take."""

import io
import itertools
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from sessions import CASES

from pytest_flashinfer_perf.engine import one_case
from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.session import time_limit
from pytest_flashinfer_perf.session.time_limit import Limit
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Shape

QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "--perf-timeout=200", "-p", "no:cacheprovider")
SHAPE = Shape(decode.params(page_size=4, batch_size=1, s_kv=8, num_qo_heads=2, num_kv_heads=1, head_dim_qk=16))


def test_alone_a_lost_context_is_named_and_the_rest_fails_at_once(pytester):
    pytester.makepyfile(test_many=CASES)
    done = pytester.runpytest(*QUICK, "-k", "planted and (s30 or s31 or s32 or s33)", "-W", "ignore")
    done.assert_outcomes(passed=1, failed=1, errors=2, deselected=196)
    named = "not run: test_many.py::test_decode[[]b2-s31-h4-kv2-d16-p4-planted[]] ended with illegal-access, "
    done.stdout.fnmatch_lines(2 * [f"{named}CUDA's context in this process is lost: run with -n 1, *"])


SLOW = """
    import time
    import pytest

    @pytest.fixture
    def slow():
        yield
        time.sleep(60)

    def test_fails(perf, slow): assert 0
"""
COMPILES = """
    import sys
    import time
    from types import SimpleNamespace

    import torch

    class JitSpec:
        name = "mine"

        def build_and_load(self):
            time.sleep(6)

    sys.modules["flashinfer.jit.core"] = SimpleNamespace(JitSpec=JitSpec)
    built = []

    def kernel(a, out):
        if not built:
            built.append(JitSpec().build_and_load())
        out.copy_(a)

    def test_it(perf):
        perf.time(kernel, torch.ones(8), out=torch.empty(8))
"""


@pytest.mark.more
@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (CASES.replace("ctypes.PyDLL", "ctypes.CDLL"), ("--perf-timeout=2", "-k", "planted and (s22 or s23)"), 1),
        (SLOW, ("--perf-timeout=2",), 1),
        (COMPILES, ("--perf-timeout=5", "--perf-refcheck=off"), 0),
    ],
    ids=["hangs", "hangs after it failed", "compiles"],
)
def test_alone_a_hang_ends_the_run_with_the_way_out_and_what_compiles_is_no_hang(pytester, text, options, code):
    """pytest stops faulthandler's clock where a test fails."""
    pytester.makepyfile(test_it=text)
    done = pytester.runpytest_subprocess(*QUICK, *options)
    assert done.ret == code
    if code:
        limit = "no end within 2 s (--perf-timeout), and the run ends with it: run with -n 1, "
        done.stderr.fnmatch_lines([f"flashinfer-perf: {limit}*", "Timeout *"])


def test_memory_is_given_back_before_the_next_case(cpu, monkeypatch):
    """Nobody holds what a case had when it ran out: neither its error nor what was raised instead."""
    held = []

    def build(*_):
        kept = torch.ones(8)
        held.append(weakref.ref(kept))
        return torch.empty(1 << 50) + kept

    decode.backend("planted")(build)
    returned = []
    monkeypatch.setattr("gc.collect", lambda: returned.append(held[0]() is None))
    with pytest.raises(one_case.OutOfMemoryError, match=r"out of memory, where 0\.5 GiB were estimated: .*allocate"):
        one_case.run_case(Case(decode, SHAPE, "planted"), Measuring(), Checking(), cpu)
    assert returned[-1]


def test_memory_that_nobody_holds_is_looked_for_where_it_is_short(cpu):
    class Hoard:
        def __init__(self):
            self.itself = self

    kept = weakref.ref(Hoard())

    class Short(Device):
        def free_bytes(self):
            return 0 if kept() else 1 << 40

    assert one_case.obstacle(Case(decode, SHAPE, "torch"), Short(**vars(cpu))) is None


def test_what_is_compiled_or_waited_for_is_not_counted(monkeypatch):
    """Each reading of the clock is a second later; the watchdog is Python's own."""
    armed = []
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda seconds, **_: armed.append(seconds))
    monkeypatch.setattr("faulthandler.cancel_dump_traceback_later", lambda: armed.append(None))
    clock = SimpleNamespace(monotonic=itertools.count(1.0).__next__)
    monkeypatch.setattr("pytest_flashinfer_perf.session.time_limit.time", clock)

    class JitSpec:
        name = "gemm"

        def build_and_load(self):
            with time_limit.not_counted():
                return "module"

    monkeypatch.setitem(sys.modules, "flashinfer.jit.core", SimpleNamespace(JitSpec=JitSpec))
    builds.watch()
    builds.watch()
    assert JitSpec().build_and_load() == "module"
    assert armed == []
    with Limit(10.0, io.StringIO()).of_one():
        assert JitSpec().build_and_load() == "module"
    assert armed == [10.0, None, 9.0, None]
