"""Append traces, one line each, in the format of FlashInfer-Bench."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from flashinfer_bench.data import Evaluation, EvaluationStatus, Performance, Trace
from flashinfer_bench.utils import env_snapshot

from pytest_flashinfer_perf.kernel_timing.run import Timing
from pytest_flashinfer_perf.machine.requirements import version
from pytest_flashinfer_perf.trace_sets.judge import EvaluationResult, Job

VERSIONS_OF = ("flashinfer-python", "cupti-python", "pytest-flashinfer-perf")


def trace_of(job: Job, outcome: EvaluationResult) -> Trace:
    performance = None
    if outcome.status == EvaluationStatus.PASSED:
        latency, reference = latency_ms(outcome), outcome.reference_ms
        ratio = reference / latency
        performance = Performance(latency_ms=latency, reference_latency_ms=reference, speedup_factor=ratio)
    evaluation = Evaluation(
        status=outcome.status,
        environment=_environment(job, outcome),
        timestamp=datetime.now().astimezone().isoformat(),
        log="\n".join(filter(None, (outcome.log.rstrip(), outcome.message))),
        correctness=outcome.correctness,
        performance=performance,
    )
    named = {"definition": job.definition.name, "solution": job.solution.name}
    return Trace(**named, workload=job.workload, evaluation=evaluation)


def latency_ms(outcome: EvaluationResult) -> float:
    return 1e3 * fmean(timing.median for timing in outcome.timings)


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


def evaluated(folder: Path | None, traces: Iterable[Trace] = ()) -> frozenset[tuple[str, str, str]]:
    """The definition, workload and solution of each trace, of these and of those in the folder."""
    files = sorted(folder.rglob("*.jsonl")) if folder else []
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
    known = (trace for trace in (*traces, *filter(None, map(_read, lines))) if trace.evaluation)
    return frozenset((trace.definition, trace.workload.uuid, trace.solution or "") for trace in known)


def _read(line: str) -> Trace | None:
    """A trace, None where a line is none: the tests of its data set say so."""
    try:
        return Trace.model_validate_json(line)
    except (ValueError, TypeError, RecursionError):
        return None


def append(trace: Trace, job: Job, folder: Path) -> Path:
    """Append a line in one write, so that lines of other processes stay intact."""
    path: Path = folder / job.solution.author / job.definition.op_type / f"{job.definition.name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b", buffering=0) as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        broken = file.read(1) not in (b"", b"\n")
        file.write(b"\n" * broken + trace.model_dump_json().encode() + b"\n")
    return path
