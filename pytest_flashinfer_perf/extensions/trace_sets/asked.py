"""The data sets that a session asks for, which pytest neither walks nor imports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Way:
    """Whether solutions are run, and where their traces go: with `output` None, into the data set."""

    trust: bool = False
    output: str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> Way:
        return cls(config.getoption("perf_trust_solutions"), config.getoption("perf_trace_output"))

    def traces(self, root: Path) -> Path | None:
        """The folder for the traces of this data set, None to write none."""
        return root / "traces" if self.output is None else Path(self.output) if self.output else None


def refuse_walked(config: pytest.Config) -> None:
    """Refuse data sets that pytest would walk, before it imports or reads a file of theirs."""
    here = config.invocation_params.dir
    for argument in config.known_args_namespace.file_or_dir or ["."]:
        name = argument.partition("::")[0]
        root = here / name
        if (root / "definitions").is_dir() and (root / "workloads").is_dir():
            way = f"name it by --perf-trace-set={name}, from a folder outside of it"
            raise pytest.UsageError(f"{root} is a data set, whose files pytest would read: {way}")


def take(config: pytest.Config) -> list[Path]:
    """The roots of the data sets; alone they replace the configured test paths."""
    here, way = config.invocation_params.dir, Way.of(config)
    roots = [(here / name).absolute() for name in config.getoption("perf_trace_set")]
    for root in roots:
        if not (root / "definitions").is_dir():
            raise pytest.UsageError(f"--perf-trace-set={root}: has no folder called definitions")
    if roots and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    if way.trust and not config.option.collectonly:
        _verify_traces(way.traces(root) for root in roots)
    return roots


def _verify_traces(folders: Iterable[Path | None]) -> None:
    from pytest_flashinfer_perf.api import file_io, usage

    with usage.errors_of_use():
        for folder in filter(None, folders):
            file_io.verify_outputs({"--perf-trace-output": folder / "any.jsonl"})
