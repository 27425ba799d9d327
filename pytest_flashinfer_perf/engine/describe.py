"""The parts of a row that a measurement fills in; null for what the instrument cannot measure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_flashinfer_perf.engine import peaks, placements
from pytest_flashinfer_perf.engine.measure import Measurement
from pytest_flashinfer_perf.engine.observers import Reached
from pytest_flashinfer_perf.engine.one_case import CaseResult
from pytest_flashinfer_perf.engine.timing import Timing
from pytest_flashinfer_perf.machine import implementations, requirements, switches
from pytest_flashinfer_perf.rows.parts import Parts
from pytest_flashinfer_perf.rows.row import (
    AnswerCheck,
    ClockReadings,
    Execution,
    Identity,
    KernelsAndGaps,
    KernelTrace,
    Library,
    Placement,
    Provenance,
    Refcheck,
    Row,
    Setup,
    Status,
    Throughput,
)
from pytest_flashinfer_perf.settings.settings import PeaksChoice
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Cost, as_run, best_of, first_that_covers, roofline

NANOSECONDS = 9  # digits of seconds: what CUPTI's times are in
NO_WORK = Cost(0.0, 0.0, "")
REMEDY_FOR_LAUNCHES = "--perf-cuda-graph=on replays them without the host"


def of_case(case: Case, result: CaseResult, peaks_choice: PeaksChoice) -> Row:
    row = of_measurement(case.identity.on(result.measurement.device), result.measurement, result.cost, peaks_choice)
    setup = Setup(
        tier=case.tier,
        resolved_backend=result.resolved,
        autotuned=case.autotunes,
        autotune_cache=case.autotune_cache if case.backend.tunes else None,
        tactic=result.choice.sentence if result.choice else None,
        seed=case.seed,
        verbose=case.options.verbose or None,
        inputs=result.inputs,
    )
    return replace(row, setup=setup, facts=result.facts)


def of_measurement(identity: Identity, m: Measurement, cost: Cost | None, peaks_choice: PeaksChoice) -> Row:
    # Beside the roof: the device's, or one of these calls' own.
    work, reached = _reached(m, cost, peaks_choice)

    # How it ended.
    execution = Execution(
        status="wrong" if m.verdict.faults else _status(m.timing, reached.limit_pct),
        spread=m.timing.spread,
        notes=(*m.timing.notes, *_limits(m.timing), *m.verdict.notes),
        peak_memory_bytes=m.peak_memory_bytes,
        contention=m.timing.contention,
    )

    # All parts, and those of extensions.
    return Row(
        name=identity.case,
        fullname=identity.case,
        identity=identity,
        stats=m.stats,
        throughput=_throughput(m, work, reached),
        provenance=_provenance(m.timing),
        library=_library(m.timing),
        trace=_trace(m.timing),
        timed=_kernels_and_gaps(m.timing),
        clocks=_clocks(m.timing),
        check=_check(m),
        execution=execution,
        parts=Parts({**m.timing.observations.parts, **reached.parts}),
    )


def _reached(m: Measurement, cost: Cost | None, choice: PeaksChoice) -> tuple[Cost, Reached]:
    """The work as the roof counts it, and how near it came; no call can exceed the higher one of the device's roofs."""
    if m.timing.observations.roof is not None:
        return NO_WORK, m.timing.observations.roof.reached(m.bytes, m.median, choice)
    roofs = peaks.roofs(m.device)
    largest = best_of(roofs.values())
    work = as_run(cost or NO_WORK, m.median, largest)
    chosen = first_that_covers(work, sorted(roofs.values(), key=lambda roof: roof.source != choice))
    share, limit = roofline(work, m.median, chosen), roofline(_beside_the_cache(work, m), m.median, largest)
    limit_pct = limit.sol_pct if limit else None
    if share is None or chosen is None:
        return work, Reached(limit_pct=limit_pct)
    return work, Reached(share.sol_pct, share.bound, chosen.source, limit_pct)


def _throughput(m: Measurement, work: Cost, reached: Reached) -> Throughput:
    return Throughput(
        flops=m.flops,
        bytes=m.bytes,
        flops_dtype=(work.dtype or None) if work.flops else None,
        tflops=m.tflops,
        tb_per_sec=m.tb_per_sec,
        sol_pct=reached.sol_pct,
        bound=reached.bound,
        peaks=reached.peaks,
    )


def _beside_the_cache(work: Cost, m: Measurement) -> Cost:
    """The work that the roof limits: with a hot L2, as much as it holds need not come from memory."""
    is_hot = m.timing.cold_l2 == "none"
    return replace(work, bytes=max(0.0, work.bytes - m.device.cache_bytes)) if is_hot else work


def _status(timing: Timing, limit_pct: float | None) -> Status:
    if limit_pct is not None and limit_pct > 100.0:
        return "invalid"
    return "noisy" if timing.noisy else "ok"


def _provenance(timing: Timing) -> Provenance:
    return Provenance(
        instrument=timing.instrument,
        fallback=timing.fallback or None,
        cold_l2=timing.cold_l2,
        rotations=timing.rotations,
        cuda_graph=timing.cuda_graph,
        host_bound=timing.host_bound,
        cpu_threads=timing.cpu_threads,
        warmups=timing.warmups,
        stopped=timing.stopped,
        placements=tuple(
            Placement(median=one.median, busy=one.busy_median, cycles=one.cycles, addresses=one.addresses)
            for one in timing.placements
        ),
        placement_spread=placements.spread(timing.placements),
    )


def _limits(timing: Timing) -> Iterator[str]:
    trace = timing.observations.trace
    if trace is not None and timing.host_bound:
        busy = f"the GPU works in {100 * trace.busy_s / trace.span_s:.0f} % of a call"
        yield f"limited by the host: {busy}, which has {trace.launches} launches: {REMEDY_FOR_LAUNCHES}"


def _trace(timing: Timing) -> KernelTrace:
    trace = timing.observations.trace
    return KernelTrace(**vars(trace)) if trace else KernelTrace()


def _kernels_and_gaps(timing: Timing) -> KernelsAndGaps:
    if not timing.busy:
        return KernelsAndGaps()
    gaps = (span - busy for span, busy in zip(timing.samples, timing.busy, strict=True))
    gap = round(statistics.median(gaps), NANOSECONDS)
    return KernelsAndGaps(
        busy=statistics.median(timing.busy),
        busy_per_call=timing.busy,
        gap=gap,
        gap_of=None if not gap else "graph" if timing.cuda_graph else "host",
    )


def _library(timing: Timing) -> Library:
    trace = timing.observations.trace
    return Library(
        implementation=implementations.of_kernels(trace.kernels) if trace else None,
        requirements=requirements.versions(),
        unmet={one.name: one.why for one in requirements.unmet()},
        switches=switches.switches(),
    )


def _clocks(timing: Timing) -> ClockReadings:
    clocks, telemetry = timing.observations.clocks, timing.observations.telemetry
    return ClockReadings(
        cycles=clocks.median_cycles if clocks else None,
        cycles_spread=clocks.cycles_spread if clocks else None,
        cycles_per_call=clocks.cycles if clocks else None,
        sm_ghz=clocks.median_ghz if clocks else None,
        sm_ghz_per_call=clocks.ghz if clocks else None,
        queued=clocks.queued if clocks else None,
        throttle=telemetry.throttle,
        power_w=telemetry.power_w,
    )


def _check(m: Measurement) -> AnswerCheck:
    return AnswerCheck(
        refcheck=refcheck(m),
        allow_output_mismatch=m.checking.allow_output_mismatch,
        refcheck_rows=len(m.sample.chosen) if m.sample else None,
        refcheck_worst_abs=_largest(c.worst_abs for c in m.checks),
        refcheck_worst_rel=_largest(c.worst_rel for c in m.checks),
    )


def refcheck(m: Measurement) -> Refcheck:
    if m.verdict.faults:
        return "wrong"
    if not m.checks:
        return "off" if m.checking.off else "not checked"
    return "sampled" if m.sample else "passed"


def _largest(errors: Iterable[float]) -> float | None:
    """The largest error; null, since JSON has no infinity, if one of them is not finite or there is none."""
    values = list(errors)
    return max(values) if values and all(map(math.isfinite, values)) else None
