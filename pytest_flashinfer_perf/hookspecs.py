"""The hooks by which an extension adds to this plugin, beside pytest's own.

An extension is a module with functions of these names: a folder of `extensions/`, or what another package names by an
entry point of the group `flashinfer_perf`. It is a plugin of pytest too, so that files become tests by
`pytest_collect_file`, a result is written by `pytest_sessionfinish` and a marker is registered by `pytest_configure`.
It is loaded where an option, an argument or a test asks for more than plain tests, and by each command. What it imports
is `pytest_flashinfer_perf.api`, inside its functions where that is heavy. docs/extend.md is written along an example.

Types are named as text alone: every session of pytest imports this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.engine.observers import Observer
    from pytest_flashinfer_perf.gate.quantity import Quantity
    from pytest_flashinfer_perf.gate.verdict import Judgement, Summing
    from pytest_flashinfer_perf.plugin.fixture import CaseRun, Perf
    from pytest_flashinfer_perf.rows.row import Row
    from pytest_flashinfer_perf.settings.option import Command, Option
    from pytest_flashinfer_perf.spec.case import Case, CaseOfTest, FlagLine
    from pytest_flashinfer_perf.spec.params import Params
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


# What can be asked for.


@pytest.hookspec
def pytest_perf_options() -> Mapping[str, Sequence[Option]]:  # type: ignore[empty-body]
    """Options, by the question that they answer, which is their group in `pytest --help`."""


@pytest.hookspec
def pytest_perf_markers() -> Sequence[str]:  # type: ignore[empty-body]
    """Markers of tests, as lines of pytest's ini file have them: name, arguments and what they do."""


@pytest.hookspec
def pytest_perf_lists() -> Sequence[Command]:  # type: ignore[empty-body]
    """What `flashinfer-perf list` shows instead of routines: `--NAME` calls it with the other arguments."""


@pytest.hookspec
def pytest_perf_commands() -> Sequence[Command]:  # type: ignore[empty-body]
    """Commands of `flashinfer-perf`."""


@pytest.hookspec(firstresult=True)
def pytest_perf_collects(path: Path) -> bool | None:
    """Whether this file or folder among pytest's arguments is one that the extension collects."""


@pytest.hookspec
def pytest_perf_paths(config: pytest.Config) -> Sequence[Path]:  # type: ignore[empty-body]
    """The tests that options of the extension ask for, where no argument names any."""


@pytest.hookspec
def pytest_perf_suite() -> Sequence[Path]:  # type: ignore[empty-body]
    """Folders of tests that belong to the performance suite, beside its own."""


# Which cases there are, and what becomes of one.


@pytest.hookspec
def pytest_perf_routines() -> Iterable[AnyRoutine]:  # type: ignore[empty-body]
    """Routines beside those of the suite. This imports torch."""


@pytest.hookspec
def pytest_perf_routines_beside(config: pytest.Config) -> Mapping[str, AnyRoutine]:  # type: ignore[empty-body]
    """Routines, by their names, that no list of routines has and that tests, settings or options of this session name.

    It is called where a name is none of the other routines'.
    """


@pytest.hookspec(firstresult=True)
def pytest_perf_cases(
    config: pytest.Config, routine: AnyRoutine, shapes: Sequence[Params | str]
) -> Sequence[CaseOfTest] | None:
    """The cases of this routine, where options of the extension ask for others than those of its tiers.

    `shapes` are those that the test lists itself. What else than a Case is given is run by `pytest_perf_run_case`.
    """


@pytest.hookspec(firstresult=True)
def pytest_perf_run_case(item: pytest.Item, perf: Perf, case: CaseOfTest) -> CaseRun | None:
    """Check and time the case of a test; a wrapper may add to the row, or do something else instead."""


@pytest.hookspec(firstresult=True)
def pytest_perf_line(words: Sequence[str], routines: Mapping[str, AnyRoutine]) -> FlagLine | None:
    """Parse a line of flags that this extension handles; None leaves it to the others, at last to `routines`.

    It raises ParamError for what is not valid, and MissingCaseError for what is and has no case here.
    """


@pytest.hookspec(firstresult=True)
def pytest_perf_repeat(case: Case) -> str | None:
    """The command of another program that measures this case."""


@pytest.hookspec(firstresult=True)
def pytest_perf_devices(item: pytest.Item) -> Sequence[str] | None:
    """The UUIDs of the GPUs that a test waits for and then has alone, if these are not the one of its process."""


# What is told of rows, and written.


@pytest.hookspec
def pytest_perf_observers(config: pytest.Config | None) -> Sequence[Observer]:  # type: ignore[empty-body]
    """Observers of a call that is measured: each has a part of its row. This may import torch.

    A program that `record` runs has no session of pytest, and no `config`.
    """


@pytest.hookspec
def pytest_perf_row_parts() -> Mapping[str, Any]:  # type: ignore[empty-body]
    """The type of each field of a row that is the extension's, as that of rows/row.py: `Annotated[HostTime | None,
    "what a call costs the host"]`. A dataclass is read and written by the types of its own fields. If it has a property
    `conditions`, rows are compared where theirs are equal.
    """


@pytest.hookspec
def pytest_perf_terminal(config: pytest.Config, rows: Sequence[Row]) -> Iterable[str]:  # type: ignore[empty-body]
    """Lines below the table of a session."""


# What is judged.


@pytest.hookspec
def pytest_perf_quantities() -> Sequence[Quantity]:  # type: ignore[empty-body]
    """Quantities by which cases are judged beside their time, with the extension's limits in `[thresholds]`."""


@pytest.hookspec
def pytest_perf_sums() -> Sequence[Summing]:  # type: ignore[empty-body]
    """Sums of a run's cases that are judged as a whole, with sections of the settings file for them."""


@pytest.hookspec
def pytest_perf_judged(judgement: Judgement) -> Iterable[str]:  # type: ignore[empty-body]
    """Publish the verdicts of a session; its answer are lines for standard output, as commands to a CI system."""
