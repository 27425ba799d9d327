"""A program for child processes, which must be imported there too."""

import os
import sys
import time
from dataclasses import dataclass

from pytest_flashinfer_perf.extensions.fuzz import child_process
from pytest_flashinfer_perf.extensions.fuzz.child_process import Answer


@dataclass(frozen=True)
class Squares:
    """Answers with the worker and a square; ends the worker at a negative number, hangs at 0, retires it above 9."""

    can_fork: bool

    def load(self):
        if not self.can_fork:
            child_process._device_is_in_use = lambda: True
        return lambda: answer


def answer(number):
    sys.stdout.write(f"asked for {number}\n")
    if number < 0:
        os._exit(3)
    if number == 0:
        time.sleep(60)
    return Answer((os.getpid(), number**2), retires=number > 9)
