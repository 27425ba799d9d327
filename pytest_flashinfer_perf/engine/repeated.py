"""A case that is checked and timed again and again, by who compares what could be chosen for it.

All that is chosen gets the same inputs, at the same addresses, and is compared with the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flashinfer_perf.engine import instruments, placements, stopping
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint
from pytest_flashinfer_perf.engine.one_case import prepared
from pytest_flashinfer_perf.engine.target import Restore
from pytest_flashinfer_perf.engine.timing import Bench
from pytest_flashinfer_perf.engine.verification import NOT_KEPT, Examination
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case


class RepeatedCase:
    """A case that is built, the answer to expect, and its placements; FlashInfer's tuner has not been asked."""

    def __init__(
        self,
        case: Case,
        measuring: Measuring,
        checking: Checking,
        device: Device,
    ) -> None:
        how = case.options.applied_to(measuring, device)
        made = prepared(case, how, checking, device, tuned=False)
        self.call, self.device = made.target, device
        self.cuda_graph = made.cuda_graph
        self._bench = Bench(instruments.choose(how.instrument, device).instrument, how, device, self.cuda_graph)
        self._placed, self._free_at_first = [self.call], device.free_bytes()
        self._restore = Restore(tuple((one, one.clone()) for one in self.call.changed(self.call.args)), 1)
        self._given = Fingerprint(self.call)
        self._examination = Examination(self.call, made.expected, device, self._given)

    @property
    def instrument(self) -> str:
        return self._bench.instrument.name

    def checked(self) -> Sequence[str]:
        """What is wrong with the answer to one call."""
        self._restore()
        faults = self._examination.first().faults
        self._restore()
        return faults

    def is_spoiled(self) -> bool:
        """Whether inputs are others than at first, beside those that the call is meant to change."""
        self._restore()
        return bool(self._given.changed())

    def timed(self, nth: int) -> tuple[placements.PlacedSamples, Sequence[str]]:
        """The times in the n-th round, at addresses of its own while there is memory for them, and what is wrong."""
        if nth >= len(self._placed) and self._fits():
            self._placed.append(self.call.at_new_addresses())
        placed = self._placed[min(nth, len(self._placed) - 1)]
        timed = self._bench.timed(placed, stopping.CALLS, stopping.WARMUP)
        returned = NOT_KEPT if self.cuda_graph else timed.work.last.returned
        return timed.placement, self._examination.last(placed, returned).faults

    def _fits(self) -> bool:
        return placements.fits(self.call, self._free_at_first, self.device.free_bytes(), len(self._placed) - 1)
