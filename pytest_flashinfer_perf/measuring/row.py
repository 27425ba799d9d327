"""The row's extra_info: flat, JSON-safe, null for what the instrument cannot see."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from pytest_flashinfer_perf.config.settings import PeaksChoice
from pytest_flashinfer_perf.flashinfer_benchmark import upstream_repro
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring import peaks
from pytest_flashinfer_perf.measuring.measurement import Measurement
from pytest_flashinfer_perf.measuring.walk import Walked
from pytest_flashinfer_perf.runs import host_time
from pytest_flashinfer_perf.runs.formatting import duration
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.cost import Cost, as_run, best_of, first_that_covers, roofline
from pytest_flashinfer_perf.timing import placements
from pytest_flashinfer_perf.timing.placements import Placement
from pytest_flashinfer_perf.timing.run import Timing

NO_WORK = Cost(0.0, 0.0, "")
REMEDY_FOR_LAUNCHES = "--perf-cuda-graph=on replays them without the host"


def of_case(case: Case, walked: Walked, peaks_choice: PeaksChoice) -> dict[str, Any]:
    return {
        **of_measurement(walked.measurement, walked.cost, peaks_choice),
        **walked.facts,
        **case.identity,
        "resolved_backend": walked.resolved,
        "autotuned": getattr(case.params, "autotune", False),
        "autotune_cache": case.autotune_cache if case.backend.tunes else None,
        "tactic": walked.choice.sentence if walked.choice else None,
        "seed": case.seed,
        "repro_upstream": upstream_repro.command(case),
    }


def of_measurement(m: Measurement, cost: Cost | None, peaks_choice: PeaksChoice) -> dict[str, Any]:
    return {
        "flops": m.flops,
        "bytes": m.bytes,
        "tflops": m.tflops,
        "tb_per_sec": m.tb_per_sec,
        "spread": m.timing.spread,
        **_roof(m, cost, peaks_choice),
        **_provenance(m.timing),
        "notes": [*m.timing.notes, *_host(m.timing), *m.verdict.notes],
        **_kernels(m.timing),
        **_clocks(m.timing),
        host_time.FIELD: m.timing.seen.host.as_row() if m.timing.seen.host else None,
        **_answer(m),
        **of_device(m.device),
        "peak_memory_bytes": m.peak_memory_bytes,
        "planted_us": m.planted * 1e6 or None,
    }


def of_device(device: Device) -> dict[str, Any]:
    return {"device": str(device.torch), "device_name": device.name, "gpu_uuid": device.uuid}


def _roof(m: Measurement, cost: Cost | None, choice: PeaksChoice) -> dict[str, Any]:
    known = peaks.roofs(m.device)
    largest = best_of(known.values())
    work = as_run(cost or NO_WORK, m.median, largest)
    chosen = first_that_covers(work, sorted(known.values(), key=lambda roof: roof.source != choice))
    share, limit = (roofline(work, m.median, roof) for roof in (chosen, largest))
    return {
        "flops_dtype": (work.dtype or None) if work.flops else None,
        "sol_pct": share.sol_pct if share else None,
        "bound": share.bound if share else None,
        "peaks": chosen.source if share and chosen else None,
        "status": "wrong" if m.verdict.faults else _status(m.timing, limit.sol_pct if limit else None),
    }


def _status(timing: Timing, limit_pct: float | None) -> str:
    if limit_pct is not None and limit_pct > 100.0:
        return "invalid"
    return "noisy" if timing.noisy else "ok"


def _provenance(timing: Timing) -> dict[str, Any]:
    return {
        "instrument": timing.instrument,
        "fallback": timing.fallback or None,
        "cold_l2": timing.cold_l2,
        "rotations": timing.rotations,
        "cuda_graph": timing.cuda_graph,
        "host_bound": timing.host_bound,
        "warmups": timing.warmups,
        "stopped": timing.stopped,
        "placements": [_placement(placement) for placement in timing.placements],
        "placement_spread": placements.spread(timing.placements),
    }


def _placement(placement: Placement) -> dict[str, Any]:
    return {"median": placement.median, "cycles": placement.cycles, "addresses": list(placement.addresses)}


def _host(timing: Timing) -> Iterator[str]:
    seen = timing.seen.trace
    if seen is not None and timing.host_bound:
        busy = f"the GPU works in {100 * seen.busy_s / seen.span_s:.0f} % of a call"
        yield f"the host's time is seen: {busy}, which has {seen.launches} launches: {REMEDY_FOR_LAUNCHES}"
    host = timing.seen.host
    if host is not None and host_time.outlasts(host, timing.median):
        yield (
            f"a call takes the host {duration(host.host_us * 1e-6)} to enqueue and the GPU {duration(timing.median)}: "
            "without a CUDA graph the GPU waits for the host"
        )


def _kernels(timing: Timing) -> dict[str, Any]:
    trace = timing.seen.trace
    return {
        "kernels": list(trace.kernels) if trace else None,
        "launches": trace.launches if trace else None,
        "busy_s": trace.busy_s if trace else None,
        "span_s": trace.span_s if trace else None,
    }


def _clocks(timing: Timing) -> dict[str, Any]:
    clocks = timing.seen.clocks
    return {
        "cycles": clocks.median_cycles if clocks else None,
        "cycles_spread": clocks.cycles_spread if clocks else None,
        "cycles_per_call": list(clocks.cycles) if clocks else None,
        "sm_ghz": clocks.median_ghz if clocks else None,
        "sm_ghz_per_call": list(clocks.ghz) if clocks else None,
        "throttle": timing.seen.telemetry.throttle,
        "power_w": timing.seen.telemetry.power_w,
    }


def _answer(m: Measurement) -> dict[str, Any]:
    return {
        "refcheck": refcheck(m),
        "allow_output_mismatch": m.checking.allow_output_mismatch,
        "refcheck_rows": len(m.sample.chosen) if m.sample else None,
        "refcheck_worst_abs": _largest(c.worst_abs for c in m.checks),
        "refcheck_worst_rel": _largest(c.worst_rel for c in m.checks),
    }


def refcheck(m: Measurement) -> str:
    if m.verdict.faults:
        return "wrong"
    if not m.checks:
        return "off" if m.checking.off else "not checked"
    return "sampled" if m.sample else "passed"


def _largest(errors: Iterable[float]) -> float | None:
    """JSON has no infinity: an error that is no number is null, as one that nobody has looked for."""
    seen = list(errors)
    return max(seen) if seen and all(map(math.isfinite, seen)) else None
