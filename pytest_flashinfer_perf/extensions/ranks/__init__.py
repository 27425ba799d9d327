"""One case in several processes, a GPU each: tests marked by perf_ranks, and routines between GPUs."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

USES = ("many", "routines")  # the GPUs of a session; narrow types, experts and how they are routed to
OPTIONS = (
    option(
        "--perf-ranks",
        child=Child.OWN,
        metavar="N",
        type=options.whole(1),
        help="Run tests that are marked by perf_ranks in N processes.",
    ),
    option(
        "--perf-no-multicast",
        child=Child.OWN,
        action="store_true",
        help="Let such processes do without NVLink multicast, which can put GPUs of a shared machine out of service.",
    ),
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: OPTIONS}


def pytest_perf_markers() -> Sequence[str]:
    return (
        "perf_ranks(n, collective=None): run this test in n processes, with a GPU each; perf.time times them together",
        "comm: cases of the family between GPUs",
    )


def pytest_perf_routines() -> Iterable[AnyRoutine]:
    from pytest_flashinfer_perf.extensions.ranks import routines as folder
    from pytest_flashinfer_perf.routines import in_package

    return in_package(folder)


def pytest_perf_row_parts() -> Mapping[str, Any]:
    from pytest_flashinfer_perf.extensions.ranks.rank_times import NAME, RankTimes

    return {NAME: Annotated[RankTimes | None, "of a case that several processes ran [together](ranks.md#the-row)"]}


def pytest_perf_suite() -> Sequence[Path]:
    from pytest_flashinfer_perf.api import cases

    return (cases.root() / "tests" / "comm",)


# A test that several processes make together is run in those, instead of in the session's.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from pytest_flashinfer_perf.extensions.ranks import rank_environment

    for item in items:
        if rank_environment.number(item) is not None:
            from pytest_flashinfer_perf.extensions.ranks import ranked

            ranked.prepare(item)


def pytest_perf_devices(item: pytest.Item) -> Sequence[str] | None:
    from pytest_flashinfer_perf.extensions.many import gpus
    from pytest_flashinfer_perf.extensions.ranks import rank_environment

    number = rank_environment.number(item)
    return None if number is None else gpus.of_session()[:number]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Give `perf` its group of ranks."""
    perf: Any = yield
    if fixturedef.argname == "perf":
        from pytest_flashinfer_perf.api import stash

        if fixturedef.func.__module__ == stash.OURS:
            from pytest_flashinfer_perf.extensions.ranks import ranked

            ranked.complete(perf, request.node.nodeid)
    return perf


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    from pytest_flashinfer_perf.extensions.ranks import rank_environment

    if not rank_environment.is_together(pyfuncitem):
        return None
    from pytest_flashinfer_perf.extensions.ranks import ranked

    ranked.run(pyfuncitem)
    return True
