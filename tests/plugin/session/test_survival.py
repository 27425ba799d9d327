"""What becomes of the others when a case ends badly and nobody supervises, and how long a case may take."""

import io
import os
import signal
import subprocess
import sys
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from sessions import CASES

from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measurement import one_case
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.session import time_limit
from pytest_flashinfer_perf.session.time_limit import Limit
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Shape

QUICK = ("--perf-iters=3", "--perf-warmup=1", "--perf-device=cpu", "--perf-timeout=20", "-p", "no:hypothesispytest")


def test_alone_a_lost_context_is_named_and_the_rest_fails_at_once(pytester):
    pytester.makepyfile(test_many=CASES)
    done = pytester.runpytest(*QUICK, "-k", "planted and (s30 or s31 or s32 or s33)", "-W", "ignore")
    done.assert_outcomes(passed=1, failed=1, errors=2, deselected=196)
    named = "not run: test_many.py::test_decode[[]b2-s31-h4-kv2-d16-p4-planted[]] ended with illegal-access, "
    done.stdout.fnmatch_lines(2 * [f"{named}CUDA's context in this process is lost: run with -n 1, *"])


def test_alone_a_hang_ends_the_run_with_the_way_out(pytester):
    pytester.makepyfile(test_many=CASES.replace("ctypes.PyDLL", "ctypes.CDLL"))
    done = pytester.runpytest_subprocess(*QUICK, "--perf-timeout=2", "-k", "planted and (s22 or s23)")
    assert done.ret == 1
    done.stderr.fnmatch_lines(
        ["flashinfer-perf: no end within 2 s (--perf-timeout), and the run ends with it: run with -n 1, *", "Timeout *"]
    )


@pytest.mark.parametrize(("end", "word"), [("os.abort()", "Aborted"), ("ctypes.string_at(0)", "Segmentation fault")])
def test_alone_a_crash_says_its_case_its_own_frames_and_the_way_out(pytester, end, word):
    pytester.makepyfile(
        test_it=f"""
        import ctypes, os, threading

        def kernel():
            {end}

        def test_well(perf): perf.time(int)

        def test_crash(perf):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            perf.time(kernel)
    """
    )
    words = [sys.executable, "-m", "pytest", *QUICK, "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=pytester.path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode < 0
    said = done.stderr.strip().splitlines()
    assert said[0].startswith(f"flashinfer-perf: {word} in test_it.py::test_crash: run with -n 1, ")
    frames = [line for line in said[1:] if "ctypes" not in line]
    assert [line.rpartition(" in ")[2] for line in frames] == ["kernel", "test_crash"]
    assert all(f'"{pytester.path}/test_it.py", line ' in line for line in frames)


def test_what_a_test_forks_and_leaves_does_not_keep_the_session(pytester):
    pytester.makepyfile("""
        import os, time
        from pathlib import Path

        def test_it(perf):
            perf.time(int)
            forked = os.fork()
            if not forked:
                time.sleep(60)
                os._exit(0)
            Path("forked").write_text(str(forked))
    """)
    start = time.monotonic()
    pytester.runpytest(*QUICK, "-W", "ignore::DeprecationWarning").assert_outcomes(passed=1)
    took = time.monotonic() - start
    os.kill(int((pytester.path / "forked").read_text()), signal.SIGKILL)
    assert took < 40


def test_who_enabled_faulthandler_has_it_back_after_a_session_with_cases(pytester):
    pytester.makepyfile(test_it="def test_it(perf): perf.time(int)")
    program = f"import os, pytest; assert not pytest.main([*{QUICK}, '-p', 'no:faulthandler']); os.abort()"
    words = [sys.executable, "-X", "faulthandler", "-c", program]
    done = subprocess.run(words, cwd=pytester.path, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr.startswith("Fatal Python error: Aborted\n")


def test_a_case_that_failed_is_still_under_its_limit(pytester):
    """pytest stops faulthandler's clock where a test fails."""
    pytester.makepyfile("""
        import time
        import pytest

        @pytest.fixture
        def slow():
            yield
            time.sleep(60)

        def test_fails(perf, slow): assert 0
    """)
    start = time.monotonic()
    done = pytester.runpytest_subprocess(*QUICK, "--perf-timeout=2")
    assert (done.ret, time.monotonic() - start < 40) == (1, True)
    done.stderr.fnmatch_lines(["flashinfer-perf: no end within 2 s (--perf-timeout), and the run ends with it: *"])


def test_memory_is_given_back_before_the_next_case(cpu, monkeypatch):
    """Nobody holds what a case had when it ran out: neither its error nor what was raised instead."""
    held = []

    def build(*_):
        kept = torch.ones(8)
        held.append(weakref.ref(kept))
        return torch.empty(1 << 50) + kept

    decode.backend("planted")(build)
    shape = Shape(decode.params(page_size=4, batch_size=1, s_kv=8, num_qo_heads=2, num_kv_heads=1, head_dim_qk=16))
    returned = []
    monkeypatch.setattr("gc.collect", lambda: returned.append(held[0]() is None))
    with pytest.raises(one_case.OutOfMemoryError, match=r"out of memory, where 0\.5 GiB were estimated: .*allocate"):
        one_case.run_case(Case(decode, shape, "planted"), Measuring(), Checking(), cpu)
    assert returned[-1]


def test_memory_that_nobody_holds_is_looked_for_where_it_is_short(cpu):
    class Hoard:
        def __init__(self):
            self.itself = self

    kept = weakref.ref(Hoard())

    class Short(Device):
        def free_bytes(self):
            return 0 if kept() else 1 << 40

    shape = Shape(decode.params(page_size=4, batch_size=1, s_kv=8, num_qo_heads=2, num_kv_heads=1, head_dim_qk=16))
    assert one_case.obstacle(Case(decode, shape, "torch"), Short(**vars(cpu))) is None


@pytest.fixture
def armed(monkeypatch):
    """What the watchdog was set to, by Python's own."""
    seen = []
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda seconds, **_: seen.append(seconds))
    monkeypatch.setattr("faulthandler.cancel_dump_traceback_later", lambda: seen.append(None))
    return seen


def test_what_is_compiled_or_waited_for_is_not_counted(armed):
    class JitSpec:
        name = "gemm"

        def build_and_load(self):
            time.sleep(0.2)
            with time_limit.not_counted():
                return "module"

    before = sys.modules.get("flashinfer.jit.core")
    sys.modules["flashinfer.jit.core"] = SimpleNamespace(JitSpec=JitSpec)
    try:
        builds.watch()
        builds.watch()
        assert JitSpec().build_and_load() == "module"
        assert armed == []
        with Limit(10.0, io.StringIO()).of_one():
            time.sleep(0.05)
            assert JitSpec().build_and_load() == "module"
    finally:
        sys.modules["flashinfer.jit.core"] = before
        if before is None:
            del sys.modules["flashinfer.jit.core"]
    assert [armed[0], armed[1], armed[3]] == [10.0, None, None]
    assert len(armed) == 4
    assert 9.8 < armed[2] <= 9.95


def test_a_command_is_told_what_is_compiled_and_not_what_is_there(monkeypatch):
    class JitSpec:
        def __init__(self, name, *, is_compiled):
            self.name, self.is_compiled = name, is_compiled

        def build_and_load(self):
            return self.name

    monkeypatch.setitem(sys.modules, "flashinfer.jit.core", SimpleNamespace(JitSpec=JitSpec))
    builds.watch()
    begun = []
    forget = builds.tell(begun.append)
    specs = [JitSpec("gemm", is_compiled=False), JitSpec("decode", is_compiled=True)]
    assert [spec.build_and_load() for spec in specs] == ["gemm", "decode"]
    forget()
    assert specs[0].build_and_load() == "gemm"
    assert begun == ["gemm"]


OWN = """
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


def test_what_a_kernel_of_ones_own_compiles_is_not_counted(pytester):
    pytester.makepyfile(test_own=OWN)
    done = pytester.runpytest_subprocess(*QUICK, "--perf-timeout=5", "--perf-refcheck=off")
    done.assert_outcomes(passed=1)


@pytest.mark.parametrize("said", ["-1", "soon", "nan", "inf"])
def test_a_limit_is_a_number_of_seconds(pytester, said):
    done = pytester.runpytest(f"--perf-timeout={said}")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "must be a number of seconds, 0 for no limit" in done.stderr.str()
