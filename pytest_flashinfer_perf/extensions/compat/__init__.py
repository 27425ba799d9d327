"""The functions by which scripts time their kernels, with our instruments: change the import and nothing else.

In a test that has `perf` among its arguments such a call is its row; of a program each is one, with `--perf-record`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.api import Option, option, options

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


# Programs.

RECORD = option(
    "--perf-record", action="store_true", help="Run named Python files, and record each call by compat's functions."
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.CASES: (RECORD,)}


# What nothing can be recorded with, and why; where that extension is not there, nothing asks for it.
NOT_WITH = {
    "-n": "runs each program once, from this process",
    "--perf-resume": "runs a program anew",
    "--perf-refcheck=only": "times calls, which have no reference",
    "--perf-fuzz": "times calls, which have no shapes to search",
    "--perf-case": "times calls, which are of no case",
}


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(RECORD.dest):
        options = vars(config.option)
        is_set = {"-n": options.get("tx"), "--perf-refcheck=only": options["perf_refcheck"] == "only"}
        for name, why in NOT_WITH.items():
            if is_set.get(name, options.get(name.removeprefix("--").replace("-", "_"))):
                raise pytest.UsageError(f"{RECORD.name} {why}: leave out {name}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    config = session.config
    if config.getoption(RECORD.dest) and not any(arg.partition("::")[0].endswith(".py") for arg in config.args):
        raise pytest.UsageError(f"{RECORD.name}: no Python file is named, and those of a folder are not looked for")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Generator[None, Any, list[pytest.Collector]]:
    """Collect a program before other plugins do, since pytest would import it."""
    others: list[pytest.Collector] = yield
    is_named = file_path.suffix == ".py" and parent.session.isinitpath(file_path)
    if not (is_named and parent.config.getoption(RECORD.dest)):
        return others
    from pytest_flashinfer_perf.extensions.compat.programs import ProgramFile

    return [ProgramFile.from_parent(parent, path=file_path)]
