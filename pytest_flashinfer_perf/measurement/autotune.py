"""FlashInfer's autotuner: tune before a call is timed, keep cases independent, and record the chosen kernel."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import verify_writable


class CacheError(FlashinferPerfError):
    """The file of --perf-autotune-cache cannot be used."""


@dataclass(frozen=True)
class Choice:
    """The tuner's choice: the class of a runner and one of its tactics, -1 for the runner's default."""

    runner: str
    tactic: Any

    @property
    def sentence(self) -> str:
        return f"{self.runner} {'default' if self.tactic == -1 else self.tactic}"

    def backend(self, known: Iterable[str]) -> str:
        """The backend of this runner: the longest backend name that the runner's name begins with."""
        runner = self.runner.lower()
        fitting = [name for name in known if runner.startswith(name.lower().replace("-", "").replace("_", ""))]
        return max(fitting, key=len, default=self.runner)


def choose_kernel(call: Callable[[], object], *, tune: bool, cache: str | None) -> Choice | None:
    """Tune the call, or load the cache file, or forget earlier cases; returns the choice for the calls that follow."""
    with _watched(prepare(call, tune=tune, cache=cache)) as choices:
        call()
    return choices[-1] if choices else None


def prepare(call: Callable[[], object], *, tune: bool, cache: str | None) -> Any:
    """Tune the call, or load the cache file, or forget earlier cases; returns FlashInfer's tuner."""
    library = importlib.import_module("flashinfer.autotuner")
    library.AutoTuner.get().clear_cache()
    if tune or cache:
        with library.autotune(tune, cache=cache):
            call()
    return library.AutoTuner.get()


@contextmanager
def _watched(tuner: Any) -> Iterator[list[Choice]]:
    """Record the answers of the tuner's `choose_one`."""
    choices: list[Choice] = []
    ask = tuner.choose_one

    def choose_one(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        runner, tactic = ask(*args, **kwargs)
        choices.append(Choice(type(runner).__name__, tactic))
        return runner, tactic

    tuner.choose_one = choose_one
    try:
        yield choices
    finally:
        del tuner.choose_one


def verify(cache: str, *, tune: bool) -> None:
    """Raise CacheError if the file cannot be read; a case that tunes may write a new one."""
    path = Path(cache)
    try:
        if tune and path.parent.is_dir():
            verify_writable(path)
            if not path.exists():
                return
        json.loads(path.read_text())
    except OSError as error:
        raise CacheError(f"{cache}: {error.strerror}; a case with --autotune writes it") from error
    except ValueError as error:
        raise CacheError(
            f"{cache} is not an autotuner cache file: {error}; a case with --autotune writes one"
        ) from error
