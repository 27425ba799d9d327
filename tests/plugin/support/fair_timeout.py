"""A test's limit on a machine that others use: a second of two cores with eight busy threads counts as a quarter.

pytest-timeout asks these hooks for its timer. What waits for nothing counts too, so that a test that hangs ends.
"""

import os
import threading
from pathlib import Path

import pytest
import pytest_timeout


def share(load, cores):
    """What part of a core each busy thread of a machine has, by what its /proc/loadavg says."""
    busy = int(load.split()[3].partition("/")[0])
    return min(1.0, cores / max(1, busy))


class Timer(threading.Thread):
    def __init__(self, limit, expired):
        super().__init__(daemon=True)
        self._left, self._expired, self._stopped = limit, expired, threading.Event()

    def run(self):
        step, cores = min(1.0, self._left / 10), len(os.sched_getaffinity(0))
        while not self._stopped.wait(step):
            self._left -= step * share(Path("/proc/loadavg").read_text(), cores)
            if self._left <= 0:
                self._expired()
                return

    def cancel(self):
        self._stopped.set()
        self.join()


@pytest.hookimpl
def pytest_timeout_set_timer(item, settings):
    timer = Timer(settings.timeout, lambda: pytest_timeout.timeout_timer(item, settings))
    item.cancel_timeout = timer.cancel
    timer.start()
    return True
