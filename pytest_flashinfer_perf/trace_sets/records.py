"""Append traces, one line each, in the format of FlashInfer-Bench."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from flashinfer_bench.data import Evaluation, EvaluationStatus, Performance, Trace
from flashinfer_bench.utils import env_snapshot

from pytest_flashinfer_perf.machine.requirements import version
from pytest_flashinfer_perf.timing.run import Timing
from pytest_flashinfer_perf.trace_sets.child import EvaluationResult, Job

VERSIONS_OF = ("flashinfer-python", "cupti-python", "pytest-flashinfer-perf")


def trace_of(job: Job, outcome: EvaluationResult) -> Trace:
    passed = outcome.status == EvaluationStatus.PASSED
    evaluation = Evaluation(
        status=outcome.status,
        environment=_environment(job, outcome),
        timestamp=datetime.now().astimezone().isoformat(),
        log="\n".join(filter(None, (outcome.log.rstrip(), outcome.message))),
        correctness=outcome.correctness,
        performance=_performance(outcome) if passed else None,
    )
    named = {"definition": job.definition.name, "solution": job.solution.name}
    return Trace(**named, workload=job.workload, evaluation=evaluation)


def latency_ms(outcome: EvaluationResult) -> float:
    return 1e3 * fmean(timing.median for timing in outcome.timings)


def _performance(outcome: EvaluationResult) -> Performance:
    latency = latency_ms(outcome)
    speedup = outcome.reference_ms / latency
    return Performance(latency_ms=latency, reference_latency_ms=outcome.reference_ms, speedup_factor=speedup)


def _environment(job: Job, outcome: EvaluationResult) -> Any:
    """The environment that FlashInfer-Bench records, with further versions that affect times."""
    seen = env_snapshot(job.device)
    libs = {**seen.libs, **{name: known for name in VERSIONS_OF if (known := version(name))}}
    if outcome.timings:
        libs |= {"instrument": outcome.timings[-1].instrument, "cold_l2": outcome.timings[-1].cold_l2}
    return seen.model_copy(update={"libs": libs})


def merged(timings: tuple[Timing, ...]) -> Timing:
    """One timing with the samples of all trials."""
    return replace(timings[-1], samples=tuple(sample for timing in timings for sample in timing.samples))


def append(trace: Trace, job: Job, folder: Path) -> Path:
    """Append a line in one write, so that lines of other processes stay intact."""
    path: Path = folder / job.solution.author / job.definition.op_type / f"{job.definition.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        broken = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * broken + trace.model_dump_json().encode() + b"\n")
    return path
