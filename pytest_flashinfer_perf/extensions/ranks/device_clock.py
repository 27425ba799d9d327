"""When the kernels of a call ran on this rank's GPU, by CUPTI, whose timestamps are of one clock on a machine.

Ranks meet on the GPU: a barrier kernel of torch's symmetric memory right before the call leaves 0.5 us between them,
where processes that meet leave tens. A kernel that spins before it lets the host enqueue the call meanwhile, so that
the call does not wait for its launch. CUPTI stays attached until the process ends: to finalise it while NCCL's
watchdog asks for events has crashed other benchmarks (flashinfer#5321).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_flashinfer_perf.api import cupti as core_cupti
from pytest_flashinfer_perf.api import garbage, instruments
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks

HOLD_CYCLES = 1_000_000  # about 0.5 ms: longer than a call takes to enqueue
NO_SUCH_CALL = "the call launched nothing on the GPU of rank {}: use --perf-instrument=wall for work on the host"


def missing(ranks: Ranks) -> str | None:
    """Why a GPU of the group cannot be timed by CUPTI after a barrier on the device; the same on every rank."""
    if not ranks.device.is_gpu:
        return "there is no GPU"
    no_cupti = next(filter(None, ranks.of_all_ranks(instruments.INSTRUMENTS["cupti"].missing(ranks.device))), None)
    return no_cupti or next(filter(None, ranks.of_all_ranks(_barrier_error(ranks))), None)


def _barrier_error(ranks: Ranks) -> str | None:
    try:
        _barrier(ranks)
    except (ImportError, RuntimeError) as error:
        return f"torch has no symmetric memory here: {error}"
    return None


@functools.cache
def _barrier(ranks: Ranks) -> Any:
    """The kernel on which all ranks wait, made once for a group; it has no memory without the tensor."""
    held, handle = ranks.shared((1 << 10,), torch.uint8)
    return lambda _held=held: handle.barrier()


@dataclass
class DeviceClock:
    """Attached when it is made; `_recorded` has the activities since the last batch of calls."""

    ranks: Ranks
    name: str = "cupti"
    trace: core_cupti.Trace | None = None
    drifts: bool = True  # CUPTI fits the GPU's clock to the host's in each process alone: evidence/ranks-h200.md
    _recorded: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        from cupti import cupti

        self._cupti: Any = cupti
        self._barrier = _barrier(self.ranks)
        cupti.activity_register_callbacks(
            lambda: (core_cupti.BUFFER_BYTES, 0), lambda records: self._recorded.extend(core_cupti.copied(records))
        )
        for kind in (*core_cupti.on_host(cupti), *core_cupti.on_device(cupti), *core_cupti.between_devices(cupti)):
            cupti.activity_enable(kind)

    def spans(self, work: instruments.Work, count: int) -> list[tuple[int, int]]:
        self.ranks.meet()
        work.device.synchronize()
        self._cupti.activity_flush_all(1)
        self._recorded.clear()
        with garbage.without_gc():
            launched = [self._once(work) for _ in range(count)]
        work.device.synchronize()
        self._cupti.activity_flush_all(1)
        calls = _activities(self._recorded, launched, self._cupti)
        if not all(calls):
            raise instruments.InstrumentError(NO_SUCH_CALL.format(self.ranks.rank))
        self.trace = core_cupti.summarise(calls[-1])
        return [(min(one.start for one in call), max(one.end for one in call)) for call in calls]

    def _once(self, work: instruments.Work) -> tuple[int, int]:
        """Enqueue a call behind the barrier, and note when this host began and ended to do so."""
        work.chill()
        torch.cuda._sleep(HOLD_CYCLES)  # noqa: SLF001 - torch has no public kernel of a chosen time
        self._barrier()
        begun = self._cupti.get_timestamp()
        work()
        return begun, self._cupti.get_timestamp()


def _activities(
    records: Sequence[Any], launched: Sequence[tuple[int, int]], cupti: Any
) -> list[list[core_cupti.Activity]]:
    """What ran on the GPU for each call: whatever was launched while the host enqueued it."""
    by_host, ran = core_cupti.on_host(cupti), list(core_cupti.activities(cupti, records))
    launches = [(one.start, one.correlation_id) for one in records if one.kind in by_host]
    return [[one for one in ran if one.correlation_id in ids] for ids in core_cupti.launched_in(launched, launches)]
