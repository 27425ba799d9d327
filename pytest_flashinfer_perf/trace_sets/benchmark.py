"""`Benchmark(trace_set, config).run_all()`: evaluate a data set from your own program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from queue import Queue

from flashinfer_bench.data import Definition, EvaluationStatus, Solution, Trace, TraceSet, Workload

from pytest_flashinfer_perf.config.option import DEFAULT_SEED
from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.launch.child_process import ChildProcess, Ended, StartError, cause
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.trace_sets import records
from pytest_flashinfer_perf.trace_sets.config import BenchmarkConfig, EvaluationConfigError
from pytest_flashinfer_perf.trace_sets.judge import EvaluationResult, Job, Judging


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
        self._devices = devices.visible() if device == "auto" else [str(devices.find(device).torch)]
        self._seed = seed

    def run_all(self, *, save_results: bool = True, resume: bool | None = None) -> TraceSet:
        """Evaluate everything; returns a set with the same definitions, solutions and workloads, and new traces.

        Each visible GPU evaluates other workloads, if `device` names none. With `resume`, which is the config's if it
        is not given, what the set has a trace of is left out. Raises RunnerError, after everything was evaluated and
        saved, if a solution has no trace.
        """
        results = self._results(save=save_results, resume=self._config.resume if resume is None else resume)
        without = [
            f"{job.definition.name}, {job.solution.name}: {seen}" for job, seen in results if isinstance(seen, str)
        ]
        if without:
            raise RunnerError("\n".join(without))
        traces: dict[str, list[Trace]] = {}
        for job, trace in results:
            traces.setdefault(job.definition.name, []).append(trace)
        same = {name: getattr(self._set, name) for name in ("root", "definitions", "solutions", "workloads")}
        return TraceSet(**same, traces=traces)

    def _results(self, *, save: bool, resume: bool) -> list[Result]:
        """The jobs with their traces, in the order of the set: on each device a workload at a time."""
        done = self._done() if resume else frozenset()
        wanted = [job for job in self._jobs() if job.identity not in done]
        shares = [list(share) for _, share in groupby(wanted, lambda job: job.identity[:2])]
        free: Queue[tuple[str, Runner]] = Queue()
        with ExitStack() as runners, ThreadPoolExecutor(len(self._devices)) as pool:
            for device in self._devices:
                runner = Runner(isolated=self._config.use_isolated_runner, timeout=self._config.timeout_seconds)
                runners.callback(runner.close)
                free.put((device, runner))
            return [result for results in pool.map(partial(self._share, free, save), shares) for result in results]

    def _share(self, free: Queue[tuple[str, Runner]], save: bool, share: list[Job]) -> list[Result]:
        """Evaluate the solutions of a workload, one after the other, on a device that has nothing else to do."""
        device, runner = free.get()
        try:
            placed = [replace(job, device=device) for job in share]
            return [(job, self._trace(job, runner.evaluate(job), save=save)) for job in placed]
        finally:
            free.put((device, runner))

    def _done(self) -> frozenset[tuple[str, str, str]]:
        known = (trace for traces in self._set.traces.values() for trace in traces)
        return records.evaluated(self._traces if self._set.root is not None else None, known)

    @property
    def _traces(self) -> Path:
        return Path(self._set.root) / "traces"

    def _trace(self, job: Job, outcome: EvaluationResult, *, save: bool) -> Trace | str:
        """The trace, or why there is none."""
        if outcome.status is None:
            return f"{outcome.message}\n{outcome.log}"
        trace = records.trace_of(job, outcome)
        if save and self._set.root is not None:
            records.append(trace, job, self._traces)
        return trace

    def _jobs(self) -> Iterator[Job]:
        workloads = {name: [trace.workload for trace in traces] for name, traces in self._set.workloads.items()}
        found = (self._set.definitions, workloads, self._set.solutions)
        for job in jobs(Path(self._set.root or "."), found, self._config):
            yield replace(job, seed=self._seed)


Result = tuple[Job, "Trace | str"]
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
            raise EvaluationConfigError(f"{what}: {unknown(name, sorted(known))}")
    return set(known if named is None else named)


# Run jobs in child processes, one for each job or one for all; a crash or a hang affects one job only.

MOST_LOG = 64 << 10
FOR_BOTH = 2  # the reference may take as long as the solution


class RunnerError(FlashinferPerfError):
    """The evaluating process did not start, or gave no trace."""


class Runner:
    """Starts the judge with the first job, and another one after it died."""

    def __init__(self, *, isolated: bool, timeout: float) -> None:
        self._timeout = timeout
        self._child = ChildProcess(Judging(isolated=isolated))

    def evaluate(self, job: Job) -> EvaluationResult:
        outcome, output = self._answer(job), self._child.output()
        return replace(outcome, log=output if len(output) <= MOST_LOG else f"[...]\n{output[-MOST_LOG:]}")

    def _answer(self, job: Job) -> EvaluationResult:
        try:
            answer = self._child.ask(job, FOR_BOTH * self._timeout)
        except StartError as error:
            raise RunnerError(f"the process that judges did not start: {error}") from None
        if not isinstance(answer, Ended):
            result: EvaluationResult = answer
            return result
        if answer.status is None:
            sentence = f"the reference gave no answer within {self._timeout:g} s (timeout_seconds)"
            return EvaluationResult(None, sentence)
        return EvaluationResult(EvaluationStatus.RUNTIME_ERROR, f"the process that judges died: {cause(answer.status)}")

    def close(self) -> None:
        self._child.close()
