"""One case in several processes, a GPU each: tests marked by perf_ranks, and routines between GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


def pytest_perf_routines() -> Iterable[AnyRoutine]:
    from pytest_flashinfer_perf.extensions.ranks import routines as folder
    from pytest_flashinfer_perf.routines import in_package

    return in_package(folder)


def pytest_perf_row_parts() -> Mapping[str, Any]:
    from pytest_flashinfer_perf.extensions.ranks.rank_times import NAME, RankTimes

    return {NAME: Annotated[RankTimes | None, "of a case that several processes ran [together](ranks.md#the-row)"]}
