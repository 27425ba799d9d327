"""The contest of one case: every tactic that could be chosen for it is checked, and timed in the rounds of a race."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from pytest_flashinfer_perf.api import Device, FlashinferPerfError, errors
from pytest_flashinfer_perf.engine.repeated import RepeatedCase
from pytest_flashinfer_perf.extensions.tuner import tactics
from pytest_flashinfer_perf.extensions.tuner.race import Timed, UnfitError
from pytest_flashinfer_perf.extensions.tuner.tactics import Tactic
from pytest_flashinfer_perf.gate import noise

NO_GPU, OTHER_INPUTS = "it left the GPU unusable", "it changed an input of the call"


class SpoiledError(FlashinferPerfError):
    """A tactic left this process without a GPU, or without the inputs that all others are to get."""


def verify_alive(device: Device, error: Exception) -> None:
    """Raise SpoiledError if the error left the GPU unusable."""
    try:
        device.synchronize()
    except RuntimeError:
        raise SpoiledError(NO_GPU) from error


@contextmanager
def _no_default_instead() -> Iterator[None]:
    """Raise if FlashInfer runs its default in place of a tactic that fails, of which it only warns (cuDNN's do so)."""
    with warnings.catch_warnings(record=True) as raised_warnings:
        warnings.simplefilter("always")
        yield
    for warning in raised_warnings:
        if "falling back to default" in str(warning.message):
            raise UnfitError("fails", str(warning.message))


def _verify(faults: Sequence[str]) -> None:
    if faults:
        raise UnfitError("wrong", faults[0].partition("\n")[0])


@dataclass
class Contest:
    """Tactics by name, which are timed as `call` is.

    `starts` is told whose turn it is, `crashed` has those that ended an earlier process.
    """

    call: RepeatedCase
    starts: Callable[[str], None]
    crashed: Mapping[str, str]
    entrants: dict[str, Tactic] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)

    @property
    def tick_s(self) -> float:
        return noise.TICK_S if self.call.instrument == "cupti" else 0.0

    def enter(self, more: Iterable[Tactic]) -> list[str]:
        names = {one.name: one for one in more}
        self.entrants = names | self.entrants
        return list(names)

    def rounds(self) -> Iterator[Timed]:
        """Before each garbage is collected, as captures need it: see `graphs.capture`."""
        for nth in itertools.count(1):
            if self.call.device.is_gpu:
                gc.collect()
            yield partial(self._timed, nth)

    def _timed(self, nth: int, name: str) -> float:
        if name in self.crashed:
            raise UnfitError("fails", self.crashed[name])
        self.starts(name)
        try:
            with tactics.using(self.entrants[name]):
                return self._seconds(nth, name)
        except UnfitError:
            self._verify_inputs()
            raise
        except Exception as error:
            verify_alive(self.call.device, error)
            self._verify_inputs()
            raise UnfitError("fails", errors.in_one_line(error)) from error

    def _verify_inputs(self) -> None:
        if self.call.is_spoiled():
            raise SpoiledError(OTHER_INPUTS)

    def _seconds(self, nth: int, name: str) -> float:
        if name not in self.checked:
            with _no_default_instead():
                _verify(self.call.checked())
            self.checked.add(name)
        timed, faults = self.call.timed(nth)
        _verify(faults)
        return timed.median
