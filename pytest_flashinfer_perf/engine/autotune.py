"""FlashInfer's autotuner: tune before a call is timed, keep cases independent, and record the chosen kernel."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import verify_writable
from pytest_flashinfer_perf.machine import patches


class CacheError(FlashinferPerfError):
    """The file of --perf-autotune-cache cannot be used."""


@dataclass(frozen=True)
class Choice:
    """The tuner's choice: the class of a runner and one of its tactics, -1 for the runner's default."""

    runner: str
    tactic: Any = field(hash=False)  # of any type, a dict for example

    def __post_init__(self) -> None:
        object.__setattr__(self, "tactic", _frozen(self.tactic))

    @classmethod
    def of(cls, runner: Any, tactic: Any) -> Choice:
        return cls(type(runner).__name__, tactic)

    @property
    def sentence(self) -> str:
        tactic = repr(self.tactic) if isinstance(self.tactic, str) else self.tactic  # "0" is not 0
        return f"{self.runner} {'default' if self.tactic == -1 else tactic}"

    def backend(self, backends: Iterable[str]) -> str:
        """The backend of this runner: the longest backend name that the runner's name begins with."""
        runner = self.runner.lower()
        fitting = [name for name in backends if runner.startswith(name.lower().replace("-", "").replace("_", ""))]
        return max(fitting, key=len, default=self.runner)


def _frozen(tactic: Any) -> Any:
    """Turn lists and arrays of TVM FFI into tuples, as the tuner does when it reads a file."""
    return tactic if isinstance(tactic, (str, dict)) or not hasattr(tactic, "__iter__") else tuple(map(_frozen, tactic))


def choose_kernel(call: Callable[[], object], *, tune: bool, cache: str | None) -> Choice | None:
    """Tune the call, or load the cache file, or forget earlier cases; returns the choice for the calls that follow."""
    prepare(call, tune=tune, cache=cache)
    choices: list[Choice] = []
    with patches.tuner_choices(lambda _, runner, tactic: choices.append(Choice.of(runner, tactic))):
        call()
    return choices[-1] if choices else None


def prepare(call: Callable[[], object], *, tune: bool, cache: str | None) -> None:
    """Tune the call, or load the cache file, or forget earlier cases."""
    library = importlib.import_module("flashinfer.autotuner")
    library.AutoTuner.get().clear_cache()
    if tune or cache:
        with library.autotune(tune, cache=cache):
            call()


def verify(cache: str, *, tune: bool) -> None:
    """Raise CacheError if the file cannot be read, or if FlashInfer would not use it; one that tunes may write it."""
    path = Path(cache)
    try:
        if tune and path.parent.is_dir():
            verify_writable(path)
            if not path.exists():
                return
        environment = json.loads(path.read_text()).get("_metadata", {})
    except OSError as error:
        raise CacheError(f"{cache}: {error.strerror}; a case with --autotune writes it") from error
    except (ValueError, AttributeError) as error:  # no JSON, or no object
        raise CacheError(
            f"{cache} is not an autotuner cache file: {error}; a case with --autotune writes one"
        ) from error
    if not tune and not importlib.import_module("flashinfer.autotuner").AutoTuner.get().load_configs(cache):
        of = ", ".join(f"{name} {value}" for name, value in environment.items())
        raise CacheError(f"{cache}: FlashInfer does not use it here, as it is of another environment: {of}")
