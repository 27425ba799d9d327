"""A case that is checked and timed again and again, by who compares what could be chosen for it.

All that is chosen gets the same inputs, at the same addresses, and is compared with the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_flashinfer_perf.engine import instruments, placements, stopping
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint
from pytest_flashinfer_perf.engine.one_case import prepare
from pytest_flashinfer_perf.engine.target import Restoration
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
        prepared = prepare(case, how, checking, device, tuning=None)
        self.call, self.device = prepared.target, device
        self.cuda_graph = prepared.cuda_graph
        self._bench = Bench(instruments.choose(how.instrument, device).instrument, how, device, self.cuda_graph)
        self._targets, self._free_at_first = [self.call], device.free_bytes()
        self._restore = Restoration(tuple((one, one.clone()) for one in self.call.changed(self.call.args)), 1)
        self._first_inputs = Fingerprint(self.call)
        self._examination = Examination(self.call, prepared.expected, device, self._first_inputs)

    @property
    def instrument(self) -> str:
        return self._bench.instrument.name

    def checked(self) -> Sequence[str]:
        """Check the answer of one call, and return its faults."""
        self._restore()
        faults = self._examination.first().faults
        self._restore()
        return faults

    def is_spoiled(self) -> bool:
        """Whether inputs changed that the call is not meant to change."""
        self._restore()
        return bool(self._first_inputs.changed())

    def timed(self, nth: int) -> tuple[placements.PlacedSamples, Sequence[str]]:
        """Time the n-th round, at new addresses while there is memory for them; return the times and the faults."""
        if nth >= len(self._targets) and self._fits():
            self._targets.append(self.call.at_new_addresses())
        target = self._targets[min(nth, len(self._targets) - 1)]
        timed = self._bench.time_placement(target, stopping.CALLS, stopping.WARMUP)
        returned = NOT_KEPT if self.cuda_graph else timed.work.last.returned
        return timed.placement, self._examination.last(target, returned).faults

    def _fits(self) -> bool:
        return placements.fits(self.call, self._free_at_first, self.device.free_bytes(), len(self._targets) - 1)
