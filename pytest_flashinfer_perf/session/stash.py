"""The data that this plugin stores on pytest's config and items, one key for each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device
    from pytest_flashinfer_perf.rows.row import Identity, Row
    from pytest_flashinfer_perf.rows.run_file import Roof
    from pytest_flashinfer_perf.settings.settings import Settings
    from pytest_flashinfer_perf.spec.case import Case

OURS = "pytest_flashinfer_perf.plugin"  # the module that defines the fixture
CONFIRMS = "FLASHINFER_PERF_CONFIRMS"  # set in a process that measures suspects again, and only measures
# Of the config.
SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
DEVICE: pytest.StashKey[Device] = pytest.StashKey()
INSTEAD: pytest.StashKey[str] = pytest.StashKey()  # why perf.time is skipped: an extension does not time its cases
# Of an item.
CASE: pytest.StashKey[Case] = pytest.StashKey()  # where no parameter has it
IDENTITY: pytest.StashKey[Identity] = pytest.StashKey()  # the names of the case, measured or not
LINE: pytest.StashKey[str] = pytest.StashKey()  # of a testlist, where no case came of it
REPEAT: pytest.StashKey[str] = pytest.StashKey()  # the commands that run it again
ROW: pytest.StashKey[Row] = pytest.StashKey()
BENCHMARK: pytest.StashKey[Any] = pytest.StashKey()  # pytest-benchmark's fixture, which not every test asks for itself
CHECKED: pytest.StashKey[str] = pytest.StashKey()  # what was compared where nothing is timed
PARTS: pytest.StashKey[dict[str, Any]] = pytest.StashKey()  # what extensions tell of it, by their names, as JSON
ROOFS: pytest.StashKey[Mapping[str, Roof]] = pytest.StashKey()  # of the row's device
OUTCOME: pytest.StashKey[str] = pytest.StashKey()  # how it ended, where that is known better than by its error
OF_AN_ATTEMPT: tuple[pytest.StashKey[Any], ...] = (ROW, ROOFS, IDENTITY, CHECKED, PARTS, REPEAT, OUTCOME)


def confirms() -> bool:
    return CONFIRMS in os.environ


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs a part of another one's tests, and gives their reports to that one."""
    return hasattr(config, "workerinput")


def measures(item: pytest.Item) -> bool:
    """Whether the test uses the fixture `perf` of this plugin, if only by one of that name that is made of it."""
    definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    for definition in reversed(definitions.get("perf", ())):
        if definition.func.__module__ == OURS:
            return True
        if "perf" not in definition.argnames:
            return False
    return False


def case_of(item: pytest.Item) -> Case | None:
    from pytest_flashinfer_perf.spec.case import Case

    callspec = getattr(item, "callspec", None)
    case = callspec and callspec.params.get("case")
    return case if isinstance(case, Case) else item.stash.get(CASE, None)


def identity(item: pytest.Item) -> Identity:
    """Give the names of the item's case, also where the test ended before it used `perf`."""
    from pytest_flashinfer_perf.rows.row import Identity

    if IDENTITY in item.stash:
        return item.stash[IDENTITY]
    case, device = case_of(item), item.config.stash.get(DEVICE, None)
    names = case.identity if case else Identity(case=item.nodeid)
    return names.on(device) if device else names


def repeat(item: pytest.Item, *, from_here: bool = False) -> str:
    """The commands that run it again, from the rootdir, or from where pytest was started."""
    from pytest_flashinfer_perf.spec import flags

    case = case_of(item)
    test = as_typed(item.config, item.nodeid) if from_here else item.nodeid
    return item.stash.get(REPEAT, case.repro if case else flags.join(["pytest", test]))


def as_typed(config: pytest.Config, test: str) -> str:
    """The id of a test for a command line where pytest was started: ids are relative to the rootdir."""
    path, colons, name = test.partition("::")
    there = config.rootpath / path
    typed = os.path.relpath(there, config.invocation_params.dir) if there.exists() else path
    return f"{typed}{colons}{name}"


def forget(item: pytest.Item) -> None:
    """Remove what an earlier attempt of this test left in this process."""
    if ROW in item.stash:
        from pytest_flashinfer_perf.session import benchmark_rows

        benchmark_rows.forget(item.config, item.nodeid)
    for key in OF_AN_ATTEMPT:
        if key in item.stash:
            del item.stash[key]
