"""The functions by which scripts time their kernels, with our instruments: change the import and nothing else.

In a test that has `perf` among its arguments such a call is its row.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.compat.functions import bench_gpu_time, do_bench

__all__ = ["bench_gpu_time", "do_bench"]


def __getattr__(name: str) -> Any:
    """Imported when one is used: they need torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_flashinfer_perf.extensions.compat import functions

    return getattr(functions, name)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """While a test has `perf`, it times the calls of these functions."""
    perf = yield
    from pytest_flashinfer_perf.api import stash

    if fixturedef.argname == "perf" and fixturedef.func.__module__ == stash.OURS:
        from pytest_flashinfer_perf.extensions.compat import functions

        while_it_lasts = ExitStack()
        while_it_lasts.enter_context(functions.timed_by(perf.unchecked))
        request.addfinalizer(while_it_lasts.close)
    return perf
