"""Run jobs in child processes, one for each job or one for all; a crash or a hang affects one job only."""

from __future__ import annotations

from dataclasses import replace

from flashinfer_bench.data import EvaluationStatus

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.running.child_process import ChildProcess, Ended, StartError, cause
from pytest_flashinfer_perf.trace_sets.judge import EvaluationResult, Job, Judging

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
        outcome = self._answer(job)
        return replace(outcome, log=_end(self._child.output()))

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


def _end(output: str) -> str:
    return output if len(output) <= MOST_LOG else f"[...]\n{output[-MOST_LOG:]}"
