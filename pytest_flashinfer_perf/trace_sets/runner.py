"""Run jobs in child processes, one for each job or one for all; a crash or a hang affects one job only."""

from __future__ import annotations

import time
from dataclasses import replace

from flashinfer_bench.data import EvaluationStatus

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.running.child_process import ChildProcess, Ended, StartError, cause
from pytest_flashinfer_perf.trace_sets import plausible
from pytest_flashinfer_perf.trace_sets.child import EvaluationResult, Job, Solutions

MOST_LOG = 64 << 10


class RunnerError(FlashinferPerfError):
    """The evaluating process did not start, or gave no trace."""


class Runner:
    """Starts a worker when there is a job, and another one after the last one died."""

    def __init__(self, *, isolated: bool, timeout: float) -> None:
        self._timeout = timeout
        self._child = ChildProcess(Solutions(isolated=isolated))

    def evaluate(self, job: Job) -> EvaluationResult:
        since = time.perf_counter()
        outcome = self._answer(job)
        waited = time.perf_counter() - since
        fault = plausible.fault(job, outcome.timings, waited)
        if fault:
            self._child.end_worker()
            outcome = replace(outcome, status=None, message=fault)
        return replace(outcome, log=_end(self._child.output()))

    def _answer(self, job: Job) -> EvaluationResult:
        try:
            answer = self._child.ask(job, self._timeout)
        except StartError as error:
            raise RunnerError(f"the process that evaluates did not start: {error}") from None
        if not isinstance(answer, Ended):
            result: EvaluationResult = answer
            return result
        if answer.status is None:
            sentence = f"no answer within {self._timeout:g} s (timeout_seconds)"
            return EvaluationResult(EvaluationStatus.TIMEOUT, sentence)
        return EvaluationResult(EvaluationStatus.RUNTIME_ERROR, f"its process died: {cause(answer.status)}")

    def close(self) -> None:
        self._child.close()


def _end(output: str) -> str:
    return output if len(output) <= MOST_LOG else f"[...]\n{output[-MOST_LOG:]}"
