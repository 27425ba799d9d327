"""The tests of a data set: one for each solution of each workload, and one for each file that is not valid."""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import pytest
from flashinfer_bench.data import EvaluationStatus

from pytest_flashinfer_perf.api import SETTINGS, Measurement, Row, file_io, formatting, options, stash
from pytest_flashinfer_perf.extensions.trace_sets import benchmark, data
from pytest_flashinfer_perf.extensions.trace_sets.benchmark import Runner
from pytest_flashinfer_perf.extensions.trace_sets.config import BenchmarkConfig, EvaluationConfigError, option
from pytest_flashinfer_perf.extensions.trace_sets.judge import EvaluationResult, Job
from pytest_flashinfer_perf.spec import flags

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Device, Settings

TRUST = "solutions are other people's code, which is run only with --perf-trust-solutions"
LINES_OF_LOG = 40
DeclaredItem = tuple[str, Callable[..., None], list[pytest.MarkDecorator]]
Evaluate = Callable[[bool, "Device"], tuple[Measurement, Callable[[Row], Row], Mapping[str, Any]]]


class SolutionPerf(Protocol):
    """The part of the `perf` fixture that is used here."""

    def evaluated(self, evaluate: Evaluate, repeat: str) -> Measurement: ...


@dataclass(frozen=True)
class Way:
    """Whether solutions are run, and where their traces go: with `output` None, into the data set."""

    trust: bool = False
    output: str | None = None

    def traces(self, root: Path) -> Path | None:
        """The folder for the traces of this data set, None to write none."""
        return root / "traces" if self.output is None else Path(self.output) if self.output else None


class Evaluations:
    """The data sets of a session, and what their tests share: configuration, runner, and the folder for traces."""

    def __init__(self, roots: Sequence[Path], settings: Settings, way: Way, config: BenchmarkConfig) -> None:
        self._roots = roots
        self.settings = settings
        self.way = way
        self.config = config
        self.runner = Runner(isolated=config.use_isolated_runner, timeout=config.timeout_seconds)

    @classmethod
    def of(cls, config: pytest.Config, roots: Sequence[Path]) -> Evaluations:
        path = config.getoption("perf_trace_config")
        overrides = dict(map(option, config.getoption("perf_trace_option")))
        bench_config = BenchmarkConfig.from_yaml(path, **overrides) if path else BenchmarkConfig.default(**overrides)
        way = Way(config.getoption("perf_trust_solutions"), config.getoption("perf_trace_output"))
        if way.trust and not config.option.collectonly:
            for folder in filter(None, map(way.traces, roots)):
                file_io.verify_outputs({"--perf-trace-output": folder / "any.jsonl"})
        return cls(roots, config.stash[SETTINGS], way, bench_config)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Before the plugin gives all tests their clocks."""
        for root in self._roots:
            outside = not root.is_relative_to(session.config.rootpath)
            nodeid = root.as_posix() if outside else None  # pytest makes none for a path outside its rootdir
            items.extend(session.genitems(TraceSetItems.from_parent(session, path=root, nodeid=nodeid, shared=self)))
        return (yield)

    def pytest_sessionfinish(self) -> None:
        self.runner.close()

    def outcome(self, job: Job) -> EvaluationResult:
        """Evaluate a job, and write a trace unless it failed for reasons outside of the solution."""
        outcome, folder = self.runner.evaluate(job), self.way.traces(job.root)
        if outcome.status is None or folder is None:
            return outcome
        try:
            benchmark.recorded(job, outcome, folder)
        except OSError as error:
            lost = f"{outcome.status.value}, but its trace is not written: {error}\n{outcome.message}"
            return replace(outcome, status=None, message=lost.rstrip())
        return outcome


class TraceSetItems(pytest.File):
    """Collects the tests of a data set, whose root is its path."""

    def __init__(self, shared: Evaluations, **rest: Any) -> None:
        super().__init__(**rest)
        self.evaluations = shared

    def collect(self) -> Iterator[pytest.Function]:
        times: Counter[str] = Counter()
        for name, call, marks in self._declared(data.read(self.path)):
            times[name] += 1
            distinct = name if times[name] == 1 else f"{name[:-1]}-{times[name]}]"
            item = pytest.Function.from_parent(self, name=distinct, callobj=call)
            for mark in marks:
                item.add_marker(mark)
            if not stash.measures(item):
                item.stash[stash.IDENTITY] = replace(stash.identity(item), case=distinct)
            yield item

    def _declared(self, data_set: data.DataSet) -> list[DeclaredItem]:
        try:
            declared = [*self._problems(data_set), *self._missing(data_set), *self._jobs(data_set)]
        except EvaluationConfigError as error:
            raise self.CollectError(f"{self.path}: {error}") from error
        if not declared:
            raise self.CollectError(f"{self.path}: no definition with a workload in it")
        return declared

    def _problems(self, data_set: data.DataSet) -> Iterator[DeclaredItem]:
        for problem in data_set.problems:
            name = _slug(str(problem.file.relative_to(self.path)))
            yield f"problem[{name}]", _failing(problem.sentence), []

    def _jobs(self, data_set: data.DataSet) -> Iterator[DeclaredItem]:
        selection = (data_set.definitions, data_set.workloads, data_set.solutions)
        for job in benchmark.jobs(self.path, selection, self.evaluations.config):
            marks = pytest.mark.perf(routine=job.definition.name, backend=job.solution.name, **job.axes)
            yield _name(job), _call(self.evaluations, job, _name(job)), [marks]

    def _missing(self, data_set: data.DataSet) -> Iterator[DeclaredItem]:
        for name in benchmark.only("definitions", self.evaluations.config.definitions, list(data_set.definitions)):
            for what, of_one in (("workload", data_set.workloads), ("solution", data_set.solutions)):
                if name not in of_one:
                    yield f"{_slug(name)}[no_{what}]", _skipping(f"{name} has no {what} in {self.path}"), []


def _name(job: Job) -> str:
    axes = "-".join(f"{name}{value}" for name, value in job.workload.axes.items())
    return f"{_slug(job.definition.name)}[{_slug(f'{job.solution.name}-{axes}-{job.workload.uuid[:8]}')}]"


def _failing(sentence: str) -> Callable[..., None]:
    return lambda: pytest.fail(sentence, pytrace=False)


def _skipping(sentence: str) -> Callable[..., None]:
    return lambda: pytest.skip(sentence)


def _slug(name: str) -> str:
    return re.sub(r"[^\w.+=-]+", "_", name)


def _call(evaluations: Evaluations, job: Job, name: str) -> Callable[..., None]:
    if not evaluations.way.trust:
        return _skipping(TRUST)

    settings = evaluations.settings
    repeat = flags.join(["pytest", f"--perf-trace-set={job.root}", "--perf-trust-solutions", "-k", name])
    params = {"routine": job.definition.name, "backend": job.solution.name, **job.axes}

    def evaluate(once: bool, device: Device) -> tuple[Measurement, Callable[[Row], Row], dict[str, Any]]:
        fewest = {"warmup_runs": 0, "iterations": 1, "num_trials": 1} if once else {}
        config = job.config.model_copy(update=fewest)
        seed = options.DEFAULT_SEED if settings.seed is None else settings.seed
        own_job = replace(job, config=config, seed=seed, device=str(device.torch), measuring=settings.measuring)
        outcome = evaluations.outcome(own_job)
        return _passed(outcome, device), functools.partial(_described, own_job, outcome, name, repeat), params

    def evaluated(perf: SolutionPerf) -> None:
        perf.evaluated(evaluate, repeat)

    return evaluated


def _passed(outcome: EvaluationResult, device: Device) -> Measurement:
    """The measurement for a row; fails the test unless the solution passed."""
    if outcome.status != EvaluationStatus.PASSED:
        status = f"{outcome.status.value}: " if outcome.status else ""
        log = "".join(f"| {line}\n" for line in formatting.last_lines(outcome.log, LINES_OF_LOG).splitlines())
        pytest.fail(f"{status}{outcome.message}\n{log}", pytrace=False)
    return Measurement(benchmark.merged(outcome.timings), device, peak_memory_bytes=outcome.peak_memory_bytes)


def _described(job: Job, outcome: EvaluationResult, name: str, repeat: str, row: Row) -> Row:
    """The row with the names of the solution and its definition, and with what the evaluation found."""
    correctness = cast("Any", outcome.correctness)
    identity = replace(
        row.identity,
        case=name,
        routine=job.definition.name,
        family=job.definition.op_type,
        backend=job.solution.name,
        shape="-".join(f"{axis}{value}" for axis, value in job.workload.axes.items()) or "fixed",
        repro=repeat,
    )
    check = replace(
        row.check,
        refcheck="passed",
        refcheck_worst_abs=_finite(correctness.max_absolute_error),
        refcheck_worst_rel=_finite(correctness.max_relative_error),
    )
    return replace(
        row, identity=identity, check=check, setup=replace(row.setup, seed=job.seed), facts=_facts(job, outcome)
    )


def _facts(job: Job, outcome: EvaluationResult) -> dict[str, Any]:
    latency, correctness = benchmark.latency_ms(outcome), cast("Any", outcome.correctness)
    return {
        "author": job.solution.author,
        "workload": job.workload.uuid,
        "latency_s": latency / 1e3,
        "reference_latency_s": outcome.reference_ms / 1e3 if job.config.profile_baseline else None,
        "speedup": outcome.reference_ms / latency if job.config.profile_baseline else None,
        **{name: (correctness.extra or {}).get(name) for name in ("matched_ratio", "tvd")},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
