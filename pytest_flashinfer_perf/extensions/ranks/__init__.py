"""One case in several processes, a GPU each: tests marked by perf_ranks, and routines between GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


def pytest_perf_routines() -> Iterable[AnyRoutine]:
    from pytest_flashinfer_perf.extensions.ranks import routines as folder
    from pytest_flashinfer_perf.routines import in_package

    return in_package(folder)
