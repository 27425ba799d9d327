"""The data sets that a session asks for, found among pytest's arguments: pytest neither walks nor imports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

INI = {
    "pytest.ini": "",
    ".pytest.ini": "",
    "pytest.toml": "",
    ".pytest.toml": "",
    "pyproject.toml": r"\[tool\.pytest\b",
    "tox.ini": r"\[pytest\]",
    "setup.cfg": r"\[tool:pytest\]",
}


class Asked(NamedTuple):
    """A data set, and the names of its items if only some are wanted."""

    root: Path
    names: tuple[str, ...] = ()


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


def is_data_set(path: Path) -> bool:
    return (path / "definitions").is_dir()


def refuse_foreign(config: pytest.Config) -> None:
    """Refuse data sets with Python or ini files, before pytest would import or read them."""
    here = config.invocation_params.dir
    for name in config.known_args_namespace.file_or_dir or config.getini("testpaths") or ["."]:
        root = here / name.partition("::")[0]
        strange = _foreign(root) if is_data_set(root) else None
        if strange is not None:
            way = f"name the set by --perf-trace-set={name} instead, from a folder outside of it"
            raise pytest.UsageError(f"{root} is a data set with a {strange}, which pytest would read: {way}")


def _foreign(root: Path) -> Path | None:
    """A file that pytest would read. Tests are not, since they are not collected; the official set has some."""
    code = iter(sorted(root.rglob("conftest.py")))
    ini = ((path, pattern) for name, pattern in INI.items() for path in sorted(root.rglob(name)))
    read = (path for path, pattern in ini if re.search(pattern, path.read_text(errors="replace")))
    found = next(code, None) or next(read, None)
    return found.relative_to(root) if found else None


def take(config: pytest.Config) -> list[Asked]:
    """The data sets of --perf-trace-set and those among pytest's arguments, which are removed there."""
    here, way = config.invocation_params.dir, Way.of(config)
    asked = [Asked((here / name).absolute()) for name in config.getoption("perf_trace_set")]
    for one in asked:
        if not is_data_set(one.root):
            raise pytest.UsageError(f"--perf-trace-set={one.root}: has no folder called definitions")
    if asked and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args.clear()
    for argument in list(config.args):
        path, _, name = argument.partition("::")
        if is_data_set(here / path):
            config.args.remove(argument)
            asked.append(Asked((here / path).absolute(), (name,) if name else ()))
    if way.trust and not config.option.collectonly:
        _verify_traces(filter(None, (way.traces(one.root) for one in asked)))
    return asked


def _verify_traces(folders: Iterable[Path]) -> None:
    from pytest_flashinfer_perf.api import file_io, usage

    with usage.errors_of_use():
        for folder in folders:
            file_io.verify_outputs({"--perf-trace-output": folder / "any.jsonl"})
