"""`Benchmark(trace_set, config).run_all()`: evaluate a data set from your own program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flashinfer_bench.data import Definition, Solution, Trace, TraceSet, Workload

from pytest_flashinfer_perf.config.option import DEFAULT_SEED
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.trace_sets import records
from pytest_flashinfer_perf.trace_sets.child import EvaluationResult, Job
from pytest_flashinfer_perf.trace_sets.config import BenchmarkConfig, ConfigError
from pytest_flashinfer_perf.trace_sets.runner import Runner, RunnerError


class Benchmark:
    """Evaluates a data set. Use it only for sets whose solutions you trust, since it runs their code."""

    def __init__(
        self,
        trace_set: TraceSet,
        config: BenchmarkConfig | None = None,
        *,
        device: str = "auto",
        seed: int = DEFAULT_SEED,
    ) -> None:
        self._set = trace_set
        self._config = config or BenchmarkConfig.default()
        self._device = str(devices.find(device).torch)
        self._seed = seed

    def run_all(self, *, save_results: bool = True) -> TraceSet:
        """Evaluate everything; returns a set with the same definitions, solutions and workloads, and new traces.

        Raises RunnerError, after everything was evaluated and saved, if a solution has no trace.
        """
        traces: dict[str, list[Trace]] = {}
        without: list[str] = []
        for job, outcome in self._evaluated():
            if outcome.status is None:
                without.append(f"{job.definition.name}, {job.solution.name}: {outcome.message}\n{outcome.log}")
            else:
                traces.setdefault(job.definition.name, []).append(self._trace(job, outcome, save=save_results))
        if without:
            raise RunnerError("\n".join(without))
        same = {name: getattr(self._set, name) for name in ("root", "definitions", "solutions", "workloads")}
        return TraceSet(**same, traces=traces)

    def _evaluated(self) -> Iterator[tuple[Job, EvaluationResult]]:
        runner = Runner(isolated=self._config.use_isolated_runner, timeout=self._config.timeout_seconds)
        try:
            for job in self._jobs():
                yield job, runner.evaluate(job)
        finally:
            runner.close()

    def _trace(self, job: Job, outcome: EvaluationResult, *, save: bool) -> Trace:
        trace = records.trace_of(job, outcome)
        if save and self._set.root is not None:
            records.append(trace, job, Path(self._set.root) / "traces")
        return trace

    def _jobs(self) -> Iterator[Job]:
        workloads = {name: [trace.workload for trace in traces] for name, traces in self._set.workloads.items()}
        found = (self._set.definitions, workloads, self._set.solutions)
        for job in jobs(Path(self._set.root or "."), found, self._config):
            yield replace(job, device=self._device, seed=self._seed)


Found = tuple[Mapping[str, Definition], Mapping[str, list[Workload]], Mapping[str, list[Solution]]]


def jobs(root: Path, found: Found, config: BenchmarkConfig) -> Iterator[Job]:
    """The jobs: each solution of each workload of each definition that the config selects."""
    definitions, workloads, solutions = found
    known = [solution.name for of_one in solutions.values() for solution in of_one]
    allowed = only("definitions", config.definitions, list(definitions))
    wanted = only("solutions", config.solutions, known)
    for definition in (one for name, one in definitions.items() if name in allowed):
        resolved = config.resolve_eval_config(definition)
        for workload in workloads.get(definition.name, ()):
            for solution in (s for s in solutions.get(definition.name, ()) if s.name in wanted):
                yield Job(definition, workload, solution, root, resolved, tuple(config.evaluators))


def only(what: str, named: list[str] | None, known: list[str]) -> set[str]:
    for name in named or ():
        if name not in known:
            raise ConfigError(f"{what}: {unknown(name, sorted(known))}")
    return set(known if named is None else named)
