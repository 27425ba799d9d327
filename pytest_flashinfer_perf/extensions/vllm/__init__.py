"""vLLM's decode benchmark: its routine, its function and its CSV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


def pytest_perf_routines() -> Iterable[AnyRoutine]:
    from pytest_flashinfer_perf.extensions.vllm.vllm_decode import vllm_decode

    return (vllm_decode,)
