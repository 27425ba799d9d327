"""`Benchmark(trace_set, config).run_all()`: evaluate a data set from your own program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, cast

from flashinfer_bench.data import (
    Definition,
    Evaluation,
    EvaluationStatus,
    Performance,
    Solution,
    Trace,
    TraceSet,
    Workload,
)
from flashinfer_bench.utils import env_snapshot

from pytest_flashinfer_perf.api import (
    FlashinferPerfError,
    devices,
    errors,
    file_io,
    processes,
    requirements,
)
from pytest_flashinfer_perf.api import timing as core_timing
from pytest_flashinfer_perf.extensions.fuzz import child_process
from pytest_flashinfer_perf.extensions.trace_sets.config import BenchmarkConfig, EvaluationConfigError
from pytest_flashinfer_perf.extensions.trace_sets.judge import EvaluationResult, Job, Judging


class Benchmark:
    """Evaluates a data set. Use it only for sets whose solutions you trust, since it runs their code."""

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig | None = None,
        *,
        device: str = "auto",
    ) -> None:
        self._set = trace_set
        self._config = config or BenchmarkConfig.default()
        self._device = devices.visible()[0] if device == "auto" else str(devices.find(device).torch)
        self._traces = Path(trace_set.root) / "traces" if trace_set.root is not None else None

    def run_all(self, *, save_results: bool = True) -> TraceSet:
        """Evaluate everything; returns a set with the same definitions, solutions and workloads, and new traces.

        Raises RunnerError, after everything was evaluated and saved, if a solution has no trace.
        """
        results = self._results(save=save_results)
        without = [
            f"{job.definition.name}, {job.solution.name}: {outcome}"
            for job, outcome in results
            if isinstance(outcome, str)
        ]
        if without:
            raise RunnerError("\n".join(without))
        traces: dict[str, list[Trace]] = {}
        for job, trace in results:
            traces.setdefault(job.definition.name, []).append(trace)
        same = {name: getattr(self._set, name) for name in ("root", "definitions", "solutions", "workloads")}
        return TraceSet(**same, traces=traces)

    def _results(self, *, save: bool) -> list[Result]:
        """The jobs with their traces, in the order of the set."""
        with closing(Runner(isolated=self._config.use_isolated_runner, timeout=self._config.timeout_seconds)) as runner:
            placed = (replace(job, device=self._device) for job in self._jobs())
            return [(job, self._trace(job, runner.evaluate(job), save=save)) for job in placed]

    def _trace(self, job: Job, outcome: EvaluationResult, *, save: bool) -> Trace | str:
        """The trace, or why there is none."""
        if outcome.status is None:
            return f"{outcome.message}\n{outcome.log}"
        return recorded(job, outcome, self._traces if save else None)

    def _jobs(self) -> Iterator[Job]:
        workloads = {name: [trace.workload for trace in traces] for name, traces in self._set.workloads.items()}
        selection = (self._set.definitions, workloads, self._set.solutions)
        yield from jobs(Path(self._set.root or "."), selection, self._config)


Result = tuple[Job, "Trace | str"]
Selection = tuple[Mapping[str, Definition], Mapping[str, list[Workload]], Mapping[str, list[Solution]]]


def jobs(root: Path, selection: Selection, config: BenchmarkConfig) -> Iterator[Job]:
    """The jobs: each solution of each workload of each definition that the config selects."""
    definitions, workloads, solutions = selection
    solution_names = [solution.name for of_one in solutions.values() for solution in of_one]
    allowed = only("definitions", config.definitions, list(definitions))
    wanted = only("solutions", config.solutions, solution_names)
    for definition in (one for name, one in definitions.items() if name in allowed):
        resolved = config.resolve_eval_config(definition)
        for workload in workloads.get(definition.name, ()):
            for solution in (s for s in solutions.get(definition.name, ()) if s.name in wanted):
                yield Job(definition, workload, solution, root, resolved, tuple(config.evaluators))


def only(what: str, selected: list[str] | None, names: list[str]) -> set[str]:
    for name in selected or ():
        if name not in names:
            raise EvaluationConfigError(f"{what}: {errors.unknown(name, sorted(names))}")
    return set(names if selected is None else selected)


# Run jobs in child processes, one for each job or one for all; a crash or a hang affects one job only.

MOST_LOG = 64 << 10
FOR_BOTH = 2  # the reference may take as long as the solution


class RunnerError(FlashinferPerfError):
    """The evaluating process did not start, or gave no trace."""


class Runner:
    """Starts the judge with the first job, and another one after it died."""

    def __init__(self, *, isolated: bool, timeout: float) -> None:
        self._timeout = timeout
        self._child = child_process.ChildProcess(Judging(isolated=isolated))

    def evaluate(self, job: Job) -> EvaluationResult:
        try:
            outcome = self._child.ask(job, FOR_BOTH * self._timeout)
        except child_process.StartError as error:
            raise RunnerError(f"the process that judges did not start: {error}") from None
        match outcome:
            case child_process.Ended(None):
                sentence = f"the reference gave no answer within {self._timeout:g} s (timeout_seconds)"
                outcome = EvaluationResult(None, sentence)
            case child_process.Ended(int(status)):
                sentence = f"the process that judges died: {processes.cause(status)}"
                outcome = EvaluationResult(EvaluationStatus.RUNTIME_ERROR, sentence)
        output = self._child.output()
        log = output if len(output) <= MOST_LOG else f"[...]\n{output[-MOST_LOG:]}"
        return cast("EvaluationResult", replace(outcome, log=log))

    def close(self) -> None:
        self._child.close()


# Traces: the results in the format of FlashInfer-Bench, one on a line.

VERSIONS_OF = ("flashinfer-python", "cupti-python", "pytest-flashinfer-perf")


def recorded(job: Job, outcome: EvaluationResult, folder: Path | None) -> Trace:
    """The trace, written to the folder if there is one: behind what other processes wrote, or not at all."""
    trace = _trace_of(job, outcome)
    if folder is not None:
        path: Path = folder / job.solution.author / job.definition.op_type / f"{job.definition.name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        file_io.append_whole(path, trace.model_dump_json() + "\n")
    return trace


def _trace_of(job: Job, outcome: EvaluationResult) -> Trace:
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
    snapshot = env_snapshot(job.device)
    libs = {**snapshot.libs, **{name: version for name in VERSIONS_OF if (version := requirements.version(name))}}
    if outcome.timings:
        libs |= {"instrument": outcome.timings[-1].instrument, "cold_l2": outcome.timings[-1].cold_l2}
    return snapshot.model_copy(update={"libs": libs})


def merged(timings: tuple[core_timing.Timing, ...]) -> core_timing.Timing:
    """Join the samples of all trials into one timing."""
    return replace(timings[-1], samples=tuple(sample for timing in timings for sample in timing.samples))
