"""The GPU time of a recorded program's kernels, by CUPTI: `record --time`. It runs inside the program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_flashinfer_perf.kernel_timing.cupti import BUFFER_BYTES, copied

LONGEST_NAME = 4096


class Kernels:
    """How often each kernel ran, and for how many nanoseconds. CUPTI has one user for each process."""

    def __init__(self) -> None:
        from cupti import cupti

        self.cupti, self.kind = cupti, cupti.ActivityKind.CONCURRENT_KERNEL
        self.totals: dict[str, list[int]] = {}
        self.written = 0
        cupti.activity_enable(self.kind)
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self.completed)

    def completed(self, records: Iterable[Any]) -> None:
        for one in copied(list(records)):
            if one.kind == self.kind:
                total = self.totals.setdefault(one.name[:LONGEST_NAME], [0, 0])
                total[0] += 1
                total[1] += one.end - one.start

    def lines(self) -> list[dict[str, Any]]:
        """A line for the piece with all totals, where anything ran since the last one."""
        self.cupti.activity_flush_all(0)
        known = {name: (count, spent / 1e9) for name, (count, spent) in list(self.totals.items())}
        ran = sum(count for count, _ in known.values())
        is_new, self.written = ran != self.written, ran
        return [{"kernels": known}] if is_new else []
