"""The contest of one case: whatever could be chosen for it is checked, and then timed in the rounds of a race.

An entrant is a tactic of FlashInfer's tuner, or what a heuristic chooses among: backends, or an algorithm. Tactics
share one call, each backend has its own.
"""

from __future__ import annotations

import gc
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from pytest_flashinfer_perf.engine import placements, stopping
from pytest_flashinfer_perf.engine.cupti import attached
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint
from pytest_flashinfer_perf.engine.instruments import INSTRUMENTS
from pytest_flashinfer_perf.engine.one_case import PreparedCase
from pytest_flashinfer_perf.engine.target import Restore
from pytest_flashinfer_perf.engine.timing import Bench
from pytest_flashinfer_perf.engine.verification import NOT_KEPT, CheckResult, Examination
from pytest_flashinfer_perf.errors import FlashinferPerfError, in_one_line
from pytest_flashinfer_perf.extensions.tuner.race import Lap, Timed, UnfitError
from pytest_flashinfer_perf.gate import noise
from pytest_flashinfer_perf.machine.devices import Device

FILL = re.compile(r"(?i)memset\d*$")  # MEMSET by CUPTI's kind of activity, memset32 by the kernel's name
NO_GPU, OTHER_INPUTS = "it left the GPU unusable", "it changed an input of the call"


class SpoiledError(FlashinferPerfError):
    """A tactic left this process without a GPU, or without the inputs that all others are to get."""


class CheckedCall:
    """A call with the answer to expect, and its placements: the same ones for all that are chosen in it."""

    def __init__(self, prepared: PreparedCase, bench: Bench) -> None:
        self.bench, self.target = bench, prepared.target
        self.placed, self.free_at_first = [self.target], bench.device.free_bytes()
        self.restore = Restore(tuple((one, one.clone()) for one in self.target.changed(self.target.args)), 1)
        self.given = Fingerprint(self.target)
        self.examination = Examination(self.target, prepared.expected, bench.device, self.given)

    def first(self) -> None:
        self.restore()
        with _no_default_instead():
            verify(self.examination.first())
        self.restore()

    def verify_inputs(self) -> None:
        """Raise SpoiledError if they are others than at first, beside those that the call is meant to change."""
        self.restore()
        if self.given.changed():
            raise SpoiledError(OTHER_INPUTS)

    def timed(self, nth: int) -> Lap:
        """The time in the n-th round, at addresses of its own as long as there is memory for them."""
        if nth >= len(self.placed) and self._fits():
            self.placed.append(self.target.at_new_addresses())
        placed = self.placed[min(nth, len(self.placed) - 1)]
        timed = self.bench.timed(placed, stopping.CALLS, stopping.WARMUP)
        verify(self.examination.last(placed, NOT_KEPT if self.bench.cuda_graph else timed.work.last.returned))
        clocks = timed.placement.clocks
        return Lap(timed.placement.median, clocks.median_ghz if clocks else None)

    def _fits(self) -> bool:
        return placements.fits(self.target, self.free_at_first, self.bench.device.free_bytes(), len(self.placed) - 1)


def verify_alive(device: Device, error: Exception) -> None:
    """Raise SpoiledError if the error left the GPU unusable."""
    try:
        device.synchronize()
    except RuntimeError:
        raise SpoiledError(NO_GPU) from error


@contextmanager
def _no_default_instead() -> Iterator[None]:
    """Raise if FlashInfer runs its default in place of a tactic that fails, of which it only warns (cuDNN's do so)."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for warning in seen:
        if "falling back to default" in str(warning.message):
            raise UnfitError("fails", str(warning.message))


def verify(result: CheckResult) -> None:
    if result.faults:
        raise UnfitError("wrong", result.faults[0].partition("\n")[0])


@dataclass(frozen=True)
class Entrant:
    """Something that could be chosen: a call, and what makes FlashInfer choose this for it."""

    name: str
    call: CheckedCall
    chosen: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass
class Contest:
    """Entrants by name; `starts` is told whose turn it is, `crashed` has those that ended an earlier process."""

    bench: Bench
    starts: Callable[[str], None]
    crashed: Mapping[str, str]
    entrants: dict[str, Entrant] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)

    @property
    def tick_s(self) -> float:
        return noise.TICK_S if self.bench.instrument.name == "cupti" else 0.0

    def enter(self, more: Iterable[Entrant]) -> list[str]:
        names = {one.name: one for one in more}
        self.entrants |= {name: one for name, one in names.items() if name not in self.entrants}
        return list(names)

    def rounds(self) -> Iterator[Timed]:
        """Before each garbage is collected, as captures need it: see `graphs.capture`."""
        for nth in itertools.count(1):
            if self.bench.device.is_gpu:
                gc.collect()
            yield partial(self._timed, nth)

    def _timed(self, nth: int, name: str) -> Lap:
        if name in self.crashed:
            raise UnfitError("fails", self.crashed[name])
        self.starts(name)
        entrant = self.entrants[name]
        try:
            with entrant.chosen():
                if name not in self.checked:
                    entrant.call.first()
                    self.checked.add(name)
                return entrant.call.timed(nth)
        except UnfitError:
            entrant.call.verify_inputs()
            raise
        except Exception as error:
            verify_alive(self.bench.device, error)
            entrant.call.verify_inputs()
            raise UnfitError("fails", in_one_line(error)) from error

    def kernels(self, call: Callable[[], object]) -> tuple[str, ...] | None:
        """The kernels that a call launches, in their order; None where CUPTI cannot see them.

        A fill is none of them: a graph has one of the driver's kernels run it, where a stream does it otherwise.
        """
        device = self.bench.device
        if not device.is_gpu or INSTRUMENTS["cupti"].missing(device):
            return None
        from cupti import cupti

        with attached(cupti, device.synchronize) as recorder:
            ran = sorted(recorder.of(call), key=lambda one: one.start)
        return tuple(one.name for one in ran if not FILL.match(one.name))
