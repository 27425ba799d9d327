"""Run examples in a child process, and turn a crash or a timeout of the child into an outcome."""

from __future__ import annotations

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.fuzz.child import ChildSetup, Unable
from pytest_flashinfer_perf.fuzz.outcome import Outcome
from pytest_flashinfer_perf.running.child_process import ChildProcess, Ended, StartError, cause
from pytest_flashinfer_perf.runs.formatting import last_lines

SECONDS = 300.0  # limit for an example, whose kernel may have to be compiled
LOG_LINES = 25


class ChildError(FlashinferPerfError):
    """The child cannot run any example."""


class ExampleRunner:
    """Runs examples in one child process, which is started again after it has died."""

    def __init__(self, setup: ChildSetup, seconds: float = SECONDS) -> None:
        self._device, self._seconds = setup.device, seconds
        self._child = ChildProcess(setup)

    def close(self) -> None:
        self._child.close()

    def attempt(self, words: list[str]) -> Outcome:
        """Launch and check the case with these flags in the child."""
        try:
            answer = self._child.ask(words, self._seconds)
        except StartError as error:
            raise ChildError(f"the child process died:\n{last_lines(error.output, LOG_LINES)}") from None
        if isinstance(answer, Unable):
            raise ChildError(f"the child process cannot use {self._device}: {answer.sentence}")
        return self._ended(answer) if isinstance(answer, Ended) else answer

    def _ended(self, ended: Ended) -> Outcome:
        log = last_lines(self._child.output(), LOG_LINES)
        if ended.status is None:
            return Outcome("hung", f"no answer within {self._seconds:g} s", log=log)
        how = f"was ended by {cause(ended.status)}" if ended.status < 0 else f"ended with {cause(ended.status)}"
        return Outcome("crashed", f"the process {how}", log=log)
