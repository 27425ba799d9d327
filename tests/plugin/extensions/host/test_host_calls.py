"""Launches, waits, copies and allocations of a call, counted with the lines that make them."""

import functools
import inspect
import sys
from enum import IntEnum
from types import ModuleType, SimpleNamespace

import pytest
import torch

from pytest_flashinfer_perf.engine import timing
from pytest_flashinfer_perf.engine.cupti import attached
from pytest_flashinfer_perf.engine.instruments import Work
from pytest_flashinfer_perf.engine.placements import PlacedSamples
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.extensions.host import host_calls
from pytest_flashinfer_perf.extensions.host.host import HostObserver
from pytest_flashinfer_perf.extensions.host.host_calls import Counts
from pytest_flashinfer_perf.extensions.host.host_time import HostLine


class FakeCupti:
    """CUPTI as far as it is used: the library that is called through it says what its API calls are."""

    ActivityKind = IntEnum("ActivityKind", "RUNTIME DRIVER CONCURRENT_KERNEL MEMCPY MEMSET MEMCPY2")
    ApiCallbackSite = IntEnum("ApiCallbackSite", {"API_ENTER": 0, "API_EXIT": 1})
    CallbackDomain = IntEnum("CallbackDomain", {"RUNTIME_API": 2, "DRIVER_API": 1})

    def __init__(self):
        self.callback, self.domains, self.enabled, self.records = None, set(), set(), []
        self.next_id, self.finalized = 100, 0
        self.activity_enable, self.activity_disable = self.enabled.add, self.enabled.remove

    def subscribe(self, callback, userdata):
        self.callback = functools.partial(callback, userdata)
        return 7

    def enable_domain(self, enable, subscriber, domain):
        assert (enable, subscriber) == (1, 7)
        self.domains.add(domain)

    def unsubscribe(self, subscriber):
        assert subscriber == 7
        self.callback = None

    def activity_register_callbacks(self, _requested, completed):
        self.completed = completed

    def activity_flush_all(self, _flag):
        self.completed([record for record in self.records if record.kind in self.enabled])
        self.records = []

    def finalize(self):
        self.finalized += 1

    @property
    def is_detached(self):
        return self.finalized and not self.enabled and self.callback is None

    def api(self, name, record=None, *, domain=2, inside=()):
        """One call of the runtime, with those of the driver that it makes."""
        self.next_id += 1
        data = SimpleNamespace(function_name=name, correlation_id=self.next_id)
        is_watched = self.callback and domain in self.domains
        for data.callback_site in self.ApiCallbackSite:
            if is_watched:
                self.callback(domain, 0, data)
            for driver in inside if data.callback_site == 0 else ():
                self.api(driver, domain=1)
        if record:
            self.records.append(SimpleNamespace(correlation_id=data.correlation_id, name="k", start=0, end=1, **record))


FakeCupti.api.__code__ = FakeCupti.api.__code__.replace(co_filename=str(host_calls.TORCH / "its C++"))
KERNEL = {"kind": 3}


@pytest.fixture
def cupti():
    return FakeCupti()


def counted(cupti, call):
    with attached(cupti, lambda: cupti.api("cudaDeviceSynchronize")) as recorder:
        return host_calls.of(recorder, call)


def test_launches_and_waits_of_one_call_are_counted_with_the_lines_that_wait(cupti):
    def item():
        cupti.api("cudaMemcpyAsync", {"kind": 4}, inside=("cuMemcpyDtoHAsync_v2",))
        cupti.api("cudaStreamSynchronize", inside=("cuStreamSynchronize",))

    def call():
        cupti.api("cudaLaunchKernel", KERNEL, inside=("cuLaunchKernel",))
        item()
        cupti.api("cuLaunchKernelEx", KERNEL, domain=1)
        cupti.api("cudaMemsetAsync", {"kind": 5})

    wait = f"tests/plugin/extensions/host/test_host_calls.py:{inspect.getsourcelines(item)[1] + 2} in item"
    wanted = {"launches": 4, "synchronisations": 1, "lines": (HostLine(wait, 1),)}
    assert counted(cupti, call).fields == wanted, "neither the instrument's waits nor a part of one"
    assert cupti.is_detached


def test_which_functions_wait_for_the_gpu():
    waiting = (
        "cudaDeviceSynchronize cudaStreamSynchronize_ptsz cudaEventSynchronize cuCtxSynchronize cuStreamSynchronize"
    )
    others = (
        "cudaMemcpyAsync cuMemcpyDtoHAsync_v2 cudaLaunchKernel cudaEventQuery cudaStreamWaitEvent cuMemcpyBatchAsync"
    )
    assert all(map(host_calls.waits, [*waiting.split(), "cudaMemcpy", "cuMemcpyDtoH_v2"]))
    assert not any(map(host_calls.waits, [*others.split(), "cudaDeviceGetAttribute"]))


def test_a_line_is_the_callers_and_not_torchs_and_installed_files_are_named_as_they_are_imported():
    seen, plain = [], torch.nn.Identity()
    plain.register_forward_pre_hook(lambda *_: seen.append((sys._getframe(1).f_code, sys._getframe(1))))
    plain(torch.zeros(1))
    [(inside, frame)] = seen
    assert inside.co_filename.startswith(str(host_calls.TORCH))
    assert host_calls.leading_to(frame).startswith("tests/plugin/extensions/host/test_host_calls.py:")
    installed = "/venv/lib/python3.12/site-packages/flashinfer/decode.py"
    caller = eval(compile("(lambda: sys._getframe())", installed, "eval"), {"sys": sys})
    assert host_calls.leading_to(caller()) == "flashinfer/decode.py:1 in <lambda>"


def test_what_cannot_be_counted_is_left_out_with_the_reason(cupti):
    """No GPU is here, so torch's allocator has no figures; and a call that fails is not its case's fault."""
    gpu = torch.device("cuda")
    allocated = host_calls.counted("torch's allocator", lambda: host_calls.allocations_of(lambda: None, gpu))
    driver = host_calls.counted("cupti", lambda: counted(cupti, lambda: 1 // 0))
    assert cupti.is_detached
    both = allocated + driver
    assert both.fields == {}
    assert both.why_not.startswith("torch's allocator counts nothing of the host: KeyError")
    assert both.why_not.endswith(
        "; cupti counts nothing of the host: ZeroDivisionError: integer division or modulo by zero"
    )


def test_the_trace_of_the_timed_call_and_the_counts_of_an_eager_one_share_an_attachment(cupti, cpu, monkeypatch):
    module = ModuleType("cupti")
    module.cupti = cupti
    monkeypatch.setitem(sys.modules, "cupti", module)
    timed = Work((lambda: cupti.api("cudaGraphLaunch", KERNEL),), flush=False, device=cpu)
    eager = Target(lambda: [cupti.api("cudaLaunchKernel", KERNEL) for _ in range(3)])
    placed = timing.TimedPlacement(eager, timed, None, 0, PlacedSamples((1e-3,)))
    seen, traced = timing._trace([HostObserver()], placed, cpu)
    assert (seen.launches, traced["host"].fields["launches"]) == (1, 3)
    assert cupti.finalized == 1


def test_allocations_are_those_of_torchs_allocator(monkeypatch):
    counts = iter((7, 12))
    stats = lambda _device: {"allocation": {"all": {"allocated": next(counts)}}}  # noqa: E731
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", stats)
    assert host_calls.allocations_of(int, torch.device("cuda")) == Counts({"allocations": 5})
