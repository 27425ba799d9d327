"""FlashInfer's APIs that have a trace template, as routines: a template makes inputs and has a reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command
    from pytest_flashinfer_perf.spec.case import FlagLine
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

__tracebackhide__ = False  # its lines are a backend's
USES = ("routines",)  # narrow types, and published models
ALL = option(
    "--perf-api",
    action="store_true",
    help="Run every API of FlashInfer that has a trace template, instead of the routines of the suite.",
)
MARKER = "perf_apis"


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.CASES: (ALL,)}


def pytest_perf_markers() -> Sequence[str]:
    return (
        f"{MARKER}: parametrize `case` with the cases of all of FlashInfer's APIs that have a trace template",
        "api: cases of FlashInfer's APIs that have a trace template",
    )


def pytest_perf_lists() -> Sequence[Command]:
    from pytest_flashinfer_perf.api import Command

    sentence = "List FlashInfer's APIs that have a trace template instead."
    return (Command("api", sentence, f"{__name__}.list_command:main", "look"),)


# Which tests and which cases.


def tests() -> Path:
    """The folder of the suite's test of all APIs."""
    from pytest_flashinfer_perf.api import cases

    return cases.root() / "tests" / "api"


def names_api(words: Iterable[str]) -> bool:
    """Whether these words of a line are of an API, and not of a routine."""
    return any(word.partition("=")[0] == "--api" for word in words)


def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:
    in_case = any(names_api(line.split()) for line in config.getoption("perf_case"))
    return [tests()] if in_case or config.getoption(ALL.dest) else []


def pytest_perf_line(words: Sequence[str]) -> FlagLine | None:
    if not names_api(words):
        return None
    from pytest_flashinfer_perf.extensions.apis import lookup

    return lookup.line(list(words))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """An API's name begins the ids of its cases."""
    if metafunc.definition.get_closest_marker(MARKER) is not None:
        from pytest_flashinfer_perf.plugin import parametrize

        parametrize(metafunc, lambda: {f"{name}-": api for name, api in _all().items()})


def pytest_perf_routines_beside(config: pytest.Config) -> Mapping[str, AnyRoutine]:
    wants_apis = config.getoption(ALL.dest) or any("flashinfer." in name for name in _named_in_settings(config))
    return _all() if wants_apis else {}


def _named_in_settings(config: pytest.Config) -> Iterator[str]:
    from pytest_flashinfer_perf.api import SETTINGS

    settings = config.stash[SETTINGS]
    yield from (entry.which for entry in settings.quarantine)
    yield from (override.glob for override in settings.checking.tolerances)


def _all() -> Mapping[str, AnyRoutine]:
    from pytest_flashinfer_perf.api import usage
    from pytest_flashinfer_perf.extensions.apis.lookup import all_apis

    with usage.errors_of_use():
        return all_apis()
