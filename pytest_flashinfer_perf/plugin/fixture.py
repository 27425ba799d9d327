"""The `perf` fixture: measure a case or a call of your own, and make it the row of this test."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.engine import describe as row
from pytest_flashinfer_perf.engine import peaks
from pytest_flashinfer_perf.engine.autotune import CacheError
from pytest_flashinfer_perf.engine.call import CallSpec, Reference
from pytest_flashinfer_perf.engine.measure import Measurement, TimeCalls, alone, measure_call
from pytest_flashinfer_perf.engine.one_case import OutOfMemoryError, run_case
from pytest_flashinfer_perf.engine.verification import Outputs
from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.machine.builds import CompileError
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.rows.row import Identity, Row, Stats
from pytest_flashinfer_perf.rows.run_file import Roof
from pytest_flashinfer_perf.session import benchmark_rows, setup, stash
from pytest_flashinfer_perf.session.reports import CaseReport
from pytest_flashinfer_perf.session.stash import IDENTITY
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, MeasuringError, MeasuringLike, Settings
from pytest_flashinfer_perf.spec.case import Case, quarantined
from pytest_flashinfer_perf.spec.routine import CannotRunError, Cost

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.case import CaseOfTest

Evaluate = Callable[[bool, Device], tuple[Measurement, Callable[[Row], Row], Mapping[str, Any]]]
SWALLOWED = "nothing was measured, and the test went on after the failure of perf, which must end it"
NOTHING_MEASURED = "nothing was measured: call perf(case) or perf.time(...), or pytest.skip(reason), or remove perf"


def _by_markers(node: Any, settings: Settings) -> Measuring:
    """The run's way to measure, with what the test's markers say; those nearer to the test win."""
    own: Mapping[str, Any] = node.get_closest_marker("benchmark").kwargs
    measuring = settings.measuring.changed_by({name: own[name] for name in ("max_time",) if name in own})
    for marker in reversed(list(node.iter_markers("perf_measuring"))):
        if marker.args:
            raise MeasuringError(f"perf_measuring takes names and values, as in iters=20, got {marker.args[0]!r}")
        measuring = measuring.changed_by(marker.kwargs)
    return measuring


def _roofs(measured: Measurement) -> Mapping[str, Roof]:
    """Give the device's roofs, unless the row has one of its own."""
    return {} if measured.timing.observations.roof else peaks.roofs(measured.device)


def provide(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[Perf]:
    """Provide the value of the fixture, while its process has the device."""
    if "perf" not in request.node.fixturenames:
        raise pytest.UsageError("perf must be an argument of the test itself, not of another fixture")
    settings, device = request.config.stash[stash.SETTINGS], request.config.stash[stash.DEVICE]
    with setup.turn(request.node, settings, device):
        yield Perf(request, benchmark, settings, device)


@dataclass(frozen=True)
class CaseRun:
    """The result of a case: its measurement, and its row, where one is to be recorded."""

    measurement: Measurement | None = None
    row: Row | None = None


class Perf:
    """Call it with a case of the suite, or use `time` for a function of your own; once per test."""

    def __init__(self, request: pytest.FixtureRequest, benchmark: Any, settings: Settings, device: Device) -> None:
        observers = tuple(loading.joined(request.config.hook.pytest_perf_observers(config=request.config)))
        self.time_calls: TimeCalls = functools.partial(alone, observers=observers)
        self._node = request.node
        self._benchmark = self._node.stash[stash.BENCHMARK] = benchmark
        self._settings = settings
        self._device = device
        self._used = False
        self._since = 0.0
        self._worker = getattr(request.config, "workerinput", {}).get("workerid")
        self._only_once = request.config.getoption("benchmark_disable")
        self._failed: BaseException | None = None
        self._measuring = settings.measuring

    def _for_this_test(self, measuring: Measuring) -> Measuring:
        return measuring.of_one_call if self._only_once else measuring

    def __call__(self, case: CaseOfTest) -> Measurement | None:
        """Run a case: skip it if it cannot run here, fail it if its answer is wrong, else keep its row."""
        with self._row_or_nothing():
            run: CaseRun = self._node.ihook.pytest_perf_run_case(item=self._node, perf=self, case=case)
            if run.measurement is None or run.row is None:
                benchmark_rows.drop_row(self._benchmark)
            else:
                self._record(run.measurement, run.row)
        return run.measurement

    def measured(self, case: Case) -> CaseRun:
        """Check a case and time it, unless its answer alone is asked for."""
        self._node.stash[IDENTITY] = case.identity.on(self._device)
        self._node.stash[stash.REPEAT] = case.repro
        quarantine = quarantined(case, self._settings.quarantine, all_routines())
        if quarantine:
            pytest.skip(quarantine.sentence)
        checking = case.options.applied_to_checking(self._settings.checking)
        measuring = self._measuring if self._only_once else case.options.applied_to(self._measuring, self._device)
        limit = self._settings.max_memory
        result = run_case(case, measuring, checking, self._device, limit, time_calls=self.time_calls)
        if self._settings.checking.only:
            self._record_check(result.measurement)
            return CaseRun(result.measurement)
        self._benchmark.params = case.json_params
        self._benchmark.group = self._benchmark.group or f"{case.identity.routine}/{case.identity.shape}"
        new_row = row.of_case(case, result, self._measuring.peaks)
        upstream = self._node.ihook.pytest_perf_repeat(case=case)
        return CaseRun(result.measurement, replace(new_row, setup=replace(new_row.setup, repro_upstream=upstream)))

    def _record_check(self, measurement: Measurement) -> None:
        """Keep the result of the check; without a time there is no row."""
        self._node.stash[stash.CHECKED] = row.refcheck(measurement)

    def time(  # noqa: PLR0913 - one argument per property of a call
        self,
        fn: Callable[..., object],
        *args: Any,
        flops: float | None = None,
        bytes: float | None = None,  # noqa: A002 - the usual name
        flops_dtype: str | None = None,
        reference: Reference = None,
        out: Outputs = None,
        measuring: MeasuringLike = None,
        **kwargs: Any,
    ) -> Measurement:
        """Time `fn(*args, **kwargs)`; `out` names the tensors it writes, which are poisoned and checked.

        `measuring` has the fields of Measuring that differ from the run's options for this call.
        """
        call = CallSpec(fn, args, kwargs, flops, bytes, flops_dtype, reference, out)
        return self._time(call, measuring, self._settings.checking)

    def unchecked(self, call: CallSpec, measuring: MeasuringLike) -> Measurement:
        """Time a call of a function that says neither what it writes nor what is right."""
        if self._settings.checking.only:
            pytest.skip("--perf-refcheck=only: this call has no reference")
        return self._time(call, measuring, Checking(refcheck="off"))

    def _time(self, call: CallSpec, measuring: MeasuringLike, checking: Checking) -> Measurement:
        with self._row_or_nothing():
            self._node.stash[IDENTITY] = self._identity
            if stash.INSTEAD in self._node.config.stash:
                pytest.skip(self._node.config.stash[stash.INSTEAD])
            self._measuring = self._for_this_test(self._measuring.changed_by(measuring))
            builds.watch()
            where = {"device": str(self._device.torch), "name": self._node.name}
            measurement = measure_call(call, self._measuring, checking, **where, time_calls=self.time_calls)
            # The run's way to check, also of a call that cannot be checked.
            measured = replace(measurement, checking=self._settings.checking)
            is_inferred = call.flops_dtype is None
            cost = Cost(measured.flops or 0.0, measured.bytes or 0.0, measured.flops_dtype or "", inferred=is_inferred)
            if self._settings.checking.only:
                benchmark_rows.drop_row(self._benchmark)
                self._record_check(measured)
            else:
                self._record(measured, self._own_row(measured, cost))
        return measured

    def verify_used(self) -> None:
        """Fail a test that ended well without a measurement: it did not use the fixture, or went on after it failed."""
        if not self._used:
            benchmark_rows.drop_row(self._benchmark)
            pytest.fail(NOTHING_MEASURED, pytrace=False)
        if self._failed is not None:
            first, *_ = str(self._failed).splitlines() or [type(self._failed).__name__]
            pytest.fail(f"{SWALLOWED}: {first}", pytrace=False)

    def measured_by_others(self, run: Callable[[], CaseReport], repeat: str = "") -> None:
        """Keep what other processes measured or checked: `run` waits for them, and fails or skips where they did."""
        if stash.case_of(self._node) is None:
            self._node.stash[IDENTITY] = self._identity
        if repeat:
            self._node.stash[stash.REPEAT] = repeat
        with self._row_or_nothing():
            carried = run()
            if carried.checked is not None:
                self._node.stash[stash.CHECKED] = carried.checked
            if carried.row is None or self._only_once:
                benchmark_rows.drop_row(self._benchmark)
                return
            self._benchmark.params = dict(carried.row.params) or None
            self._keep(replace(carried.row, stats=Stats.of(carried.row.stats.data)), carried.roofs)

    def evaluated(self, evaluate: Evaluate, repeat: str) -> None:
        """Keep what a child process measured and checked. `evaluate` gets True if one call is enough."""

        def run() -> CaseReport:
            measured, described, params = evaluate(self._only_once or self._settings.checking.only, self._device)
            new_row = replace(described(self._own_row(measured, None)), params=params)
            return CaseReport(row=new_row, roofs=_roofs(measured))

        self.measured_by_others(run, repeat)

    @property
    def _identity(self) -> Identity:
        """The identity of a test without a case of a routine."""
        return Identity(case=self._node.nodeid, case_tag=self._settings.case_tag).on(self._device)

    def _own_row(self, measured: Measurement, cost: Cost | None) -> Row:
        identity = self._identity.on(measured.device)
        return row.of_measurement(identity, measured, cost, self._measuring.peaks)

    def _record(self, measured: Measurement, new_row: Row) -> None:
        if self._only_once:
            benchmark_rows.drop_row(self._benchmark)
            return
        self._keep(new_row, _roofs(measured))

    def _keep(self, new_row: Row, roofs: Mapping[str, Roof]) -> None:
        execution = replace(new_row.execution, worker=self._worker, case_s=time.monotonic() - self._since)
        new_row = replace(new_row, name=self._benchmark.name, fullname=self._benchmark.fullname, execution=execution)
        if self._worker is None:
            benchmark_rows.write(self._benchmark, self._node.get_closest_marker("benchmark").kwargs["timer"], new_row)
        else:
            benchmark_rows.attach_row(self._benchmark, new_row)
        self._node.stash[stash.ROW], self._node.stash[stash.ROOFS] = new_row, roofs

    @contextmanager
    def _row_or_nothing(self) -> Iterator[None]:
        if self._used:
            raise RuntimeError("perf makes one row per test: parametrize the test to measure more")
        self._used = True
        self._since = time.monotonic()
        try:
            with self._sentences():
                self._measuring = self._for_this_test(_by_markers(self._node, self._settings))
                yield
        except BaseException as error:
            self._failed = error
            benchmark_rows.drop_row(self._benchmark)
            raise

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn expected errors into skips and failures without a traceback."""
        try:
            yield
        except CannotRunError as reason:
            raise pytest.skip.Exception(str(reason)) from None
        except (OutOfMemoryError, CompileError) as error:
            self._node.stash[stash.OUTCOME] = error.outcome
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except CacheError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
        except WrongAnswerError as wrong:
            raise pytest.fail.Exception(f"wrong answer: {wrong}", pytrace=False) from None
