"""The functions by which scripts time their kernels, with our instruments: change the import and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.compat.functions import bench_gpu_time, do_bench, run_bench

__all__ = ["bench_gpu_time", "do_bench", "run_bench"]


def __getattr__(name: str) -> Any:
    """Imported when one is used: they need torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_flashinfer_perf.extensions.compat import functions

    return getattr(functions, name)
