"""What a call costs in energy, at the power of a board: an extension of pytest-flashinfer-perf by somebody else.

    pytest products.shapes --perf-watts=700 --benchmark-json=run.json
    flashinfer-perf energy run.json

It adds an option, a kind of file, a field of each row, lines below the table, a figure that the gate judges, and a
command. Nothing here imports torch: pytest loads this module wherever something speaks of `perf`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from pytest_flashinfer_perf import api

KIND = ".shapes"
WATTS = api.option(
    "--perf-watts",
    daily=True,  # or `flashinfer-perf options` alone shows it
    metavar="W",
    type=api.Bound("a number of watts above 0", lambda watts: 0 < watts < float("inf"), float),
    help="Add to each row the energy of a call on a board that draws so many watts. Default: do not.",
)


@dataclass(frozen=True)
class Energy:
    watts: Annotated[float, "of the board, as given"]
    joules: Annotated[float, "of one call"]


def pytest_perf_options() -> Mapping[str, Sequence[api.Option]]:
    return {api.options.TIMING: (WATTS,)}


# A field of each row, and a line below the table.


def pytest_perf_row_parts() -> Mapping[str, Any]:
    return {"energy": Annotated[Energy | None, "what a call costs in energy; `null` where no power is given"]}


@dataclass(frozen=True)
class Meter:
    """Looks at each call once it is timed."""

    watts: float
    name: str = "energy"

    def traced(self, recorder: object, target: object) -> None:
        """CUPTI has nothing to add."""

    def observed(self, target: object, device: object, seconds: float, traced: object) -> api.observers.Observation:
        return api.observers.Observation(Energy(self.watts, self.watts * seconds))


def pytest_perf_observers(config: pytest.Config | None) -> Sequence[Meter]:
    watts = config.getoption(WATTS.dest) if config else None
    return () if watts is None else (Meter(watts),)


def pytest_perf_terminal(config: pytest.Config, rows: Sequence[api.Row]) -> Iterator[str]:
    joules_by_case = [(energy.joules, row.case) for row in rows if (energy := row.part("energy", Energy))]
    if joules_by_case:
        _, case = max(joules_by_case)
        yield f"energy: {sum(joules for joules, _ in joules_by_case):.3g} J for a call of each case, most of it {case}"


# A figure that the gate judges: SLOWER by more than `slower_energy`, where the settings file sets that.


@dataclass(frozen=True)
class Limits:
    slower_energy: Annotated[float | None, api.share] = None


def joules_of(row: api.Row) -> float | None:
    energy = row.part("energy", Energy)
    return energy.joules if energy else None


def pytest_perf_quantities() -> Sequence[api.Quantity]:
    figure = api.OtherTime("energy", "the energy of a call", joules_of, noise=0.02)
    return (api.Quantity(limits=Limits, slower="slower_energy", where="by energy", figures=(figure,)),)


class Shapes(pytest.File):
    """A kind of file, each line of which is a case."""

    def collect(self) -> Iterator[pytest.Item]:
        for nth, line in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            for entry in api.lines.read(line, f"{self.path.name}:{nth}"):
                yield api.test_of(self, entry)


def pytest_perf_collects(path: Path) -> bool | None:
    return True if path.suffix == KIND else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Shapes | None:
    return Shapes.from_parent(parent, path=file_path) if file_path.suffix == KIND else None


def pytest_perf_commands() -> Sequence[api.Command]:
    return (api.Command("energy", "Show what the calls of a run cost in energy.", f"{__name__}:main"),)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("flashinfer-perf energy")
    parser.add_argument("run", type=Path)
    for row in api.run_file.read(parser.parse_args(arguments).run).rows:
        energy = row.part("energy", Energy)
        print(f"{energy.joules:.3g} J" if energy else "not known", row.case)  # noqa: T201
    return 0
