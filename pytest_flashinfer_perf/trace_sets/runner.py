"""Run jobs in child processes, one for each job or one for all; a crash or a hang affects one job only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from flashinfer_bench.data import EvaluationStatus

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.trace_sets import child, plausible
from pytest_flashinfer_perf.trace_sets.child import EvaluationResult, Job

START_SECONDS = 120.0
END_SECONDS = 10.0
MOST_LOG = 64 << 10
SPOILT = (EvaluationStatus.TIMEOUT, EvaluationStatus.RUNTIME_ERROR, None)  # after these the process is not used again


class RunnerError(FlashinferPerfError):
    """The evaluating process did not start, or gave no trace."""


@dataclass(frozen=True)
class Worker:
    process: ForkServerProcess
    connection: Connection
    log: Path

    def printed(self) -> str:
        """The end of what was printed since the last call."""
        output = self.log.read_bytes()
        os.truncate(self.log, 0)
        cut = "[...]\n" if len(output) > MOST_LOG else ""
        return cut + output[-MOST_LOG:].decode(errors="replace")

    def end(self) -> int | None:
        """Kill the process, which may hang, and return its exit code."""
        self.process.kill()
        self.process.join(END_SECONDS)
        self.connection.close()
        self.log.unlink(missing_ok=True)
        return self.process.exitcode


class Runner:
    """Starts a worker when there is a job, and another one after the last one died."""

    def __init__(self, *, isolated: bool, timeout: float) -> None:
        self._isolated = isolated
        self._timeout = timeout
        self._worker: Worker | None = None

    def evaluate(self, job: Job) -> EvaluationResult:
        worker = self._worker = self._worker or _started()
        since = time.perf_counter()
        outcome = self._answer(worker, job)
        waited = time.perf_counter() - since
        outcome = replace(outcome, log=worker.printed())
        if self._isolated:
            self.close()
        fault = plausible.fault(job, outcome.timings, waited)
        if fault:
            outcome = replace(outcome, status=None, message=fault)
        if outcome.status in SPOILT:
            self.close()
        return outcome

    def _answer(self, worker: Worker, job: Job) -> EvaluationResult:
        try:
            worker.connection.send(job)
            if not worker.connection.poll(self._timeout):
                return EvaluationResult(
                    EvaluationStatus.TIMEOUT, f"no answer within {self._timeout:g} s (timeout_seconds)"
                )
            outcome: EvaluationResult = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(END_SECONDS)
            return EvaluationResult(
                EvaluationStatus.RUNTIME_ERROR, f"its process died: {_cause(worker.process.exitcode)}"
            )
        return outcome

    def close(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


def _started() -> Worker:
    """Start a worker from a fork server that has imported everything but has not used a GPU, which is fast."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([child.__name__])
    ours, theirs = context.Pipe()
    handle, log = tempfile.mkstemp(prefix="flashinfer-perf-", suffix=".log")
    os.close(handle)
    process = context.Process(target=child.serve, args=(theirs, log), daemon=True)
    process.start()
    theirs.close()
    worker = Worker(process, ours, Path(log))
    with contextlib.suppress(EOFError, OSError):
        if ours.poll(START_SECONDS) and ours.recv() == child.READY:
            return worker
    output = worker.printed()
    raise RunnerError(f"the process that evaluates did not start: {_cause(worker.end())}\n{output}")


def _cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return signal.Signals(-exitcode).name
    return f"exit code {exitcode}"
