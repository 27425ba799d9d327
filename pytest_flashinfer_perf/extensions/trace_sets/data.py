"""Read a data set file by file: a file that is not valid is a problem of its own and does not affect others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flashinfer_bench.data import Definition, Solution, Trace, Workload
from pydantic import BaseModel, ValidationError

from pytest_flashinfer_perf.extensions.trace_sets.config import sentences

M = TypeVar("M", bound=BaseModel)
FOLDER_NAME = re.compile(r"[^/\\\0]+")


@dataclass(frozen=True)
class Problem:
    """A file, and the message about its fault."""

    file: Path
    sentence: str


@dataclass
class DataSet:
    root: Path
    definitions: dict[str, Definition] = field(default_factory=dict)
    workloads: dict[str, list[Workload]] = field(default_factory=dict)
    solutions: dict[str, list[Solution]] = field(default_factory=dict)
    defined_in: dict[str, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def problem(self, file: Path, sentence: str, line: int | None = None) -> None:
        where = f"{file.relative_to(self.root)}{f':{line}' if line else ''}"
        self.problems.append(Problem(file, f"{where}: {sentence}"))


def read(root: Path) -> DataSet:
    data_set = DataSet(root)
    for file, _, definition in _parsed(data_set, "definitions", Definition):
        _add_definition(data_set, file, definition)
    for file, _, solution in _parsed(data_set, "solutions", Solution):
        _add_solution(data_set, file, solution)
    for file, line, trace in _parsed(data_set, "workloads", Trace):
        _add_workload(data_set, file, line, trace)
    return data_set


def _parsed(data_set: DataSet, folder: str, kind: type[M]) -> Iterator[tuple[Path, int | None, M]]:
    """What a folder's files hold, each with its place: a trace is a line, anything else is a file."""
    for file in sorted((data_set.root / folder).rglob("*.jsonl" if kind is Trace else "*.json")):
        if not inside(data_set.root, file):
            data_set.problem(file, "is a link that leaves the data set")
        elif file.is_file():
            for line, text in _texts(data_set, file):
                entry = _validated(data_set, file, kind, text, line)
                if entry is not None:
                    yield file, line, entry


def inside(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _texts(data_set: DataSet, file: Path) -> Iterator[tuple[int | None, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        data_set.problem(file, str(error))
        return
    if file.suffix == ".json":
        yield None, text
    else:
        yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _validated(data_set: DataSet, file: Path, kind: type[M], text: str, line: int | None) -> M | None:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        data_set.problem(file, "; ".join(sentences(error)), line)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:  # raised by the model's own validators
        data_set.problem(file, f"{type(error).__name__}: {error}", line)
    return None


def _add_definition(data_set: DataSet, file: Path, definition: Definition) -> None:
    if definition.name in data_set.definitions:
        data_set.problem(file, f"name: {definition.name!r} is in {data_set.defined_in[definition.name].name} already")
    elif _named_well(data_set, file, name=definition.name, op_type=definition.op_type):
        data_set.definitions[definition.name] = definition
        data_set.defined_in[definition.name] = file


def _add_solution(data_set: DataSet, file: Path, solution: Solution) -> None:
    names = {s.name for others in data_set.solutions.values() for s in others}
    if solution.definition not in data_set.definitions:
        data_set.problem(file, f"definition: {solution.definition!r} does not exist")
    elif solution.name in names:
        data_set.problem(file, f"name: another solution is called {solution.name!r} too")
    elif _named_well(data_set, file, author=solution.author):
        data_set.solutions.setdefault(solution.definition, []).append(solution)


def _named_well(data_set: DataSet, file: Path, **names: str) -> bool:
    """Whether these names can be names of folders and files of traces."""
    for field_name, name in names.items():
        if not FOLDER_NAME.fullmatch(name) or name in (".", ".."):
            data_set.problem(file, f"{field_name}: {name!r} cannot be the name of a file")
            return False
    return True


def _add_workload(data_set: DataSet, file: Path, line: int | None, trace: Trace) -> None:
    definition = data_set.definitions.get(trace.definition)
    if trace.solution is not None or trace.evaluation is not None:
        data_set.problem(file, "solution, evaluation: a workload has neither", line)
    elif definition is None:
        data_set.problem(file, f"definition: {trace.definition!r} does not exist", line)
    elif wrong := unusable(trace.workload, definition, data_set.root):
        data_set.problem(file, wrong, line)
    elif any(w.uuid == trace.workload.uuid for w in data_set.workloads.get(definition.name, ())):
        data_set.problem(file, f"workload.uuid: {trace.workload.uuid!r} exists already", line)
    else:
        data_set.workloads.setdefault(definition.name, []).append(trace.workload)


def unusable(workload: Workload, definition: Definition, root: Path) -> str | None:
    """The reason why this workload cannot be run, as far as it can be found without loading it; else None."""
    for axis in definition.var_axes:
        if axis not in workload.axes:
            return f"workload.axes.{axis}: is missing"
    for name, declared in workload.inputs.items():
        if name not in definition.inputs:
            return f"workload.inputs.{name}: {definition.name} has no such input"
        if declared.type == "scalar" and definition.inputs[name].shape is not None:
            return f"workload.inputs.{name}: must be a tensor, got a scalar"
        if declared.type == "safetensors" and (wrong := _unusable_blob(declared, root)):
            return f"workload.inputs.{name}.path: {wrong}"
    return None


def _unusable_blob(declared: Any, root: Path) -> str | None:
    file = root / declared.path
    if not inside(root, file):
        return f"{declared.path} leaves the data set"
    if not file.is_file():
        return f"{declared.path} does not exist"
    with file.open("rb") as opened:
        if opened.read(8) == b"version ":
            return f"{declared.path} is a Git LFS pointer: git lfs pull --include {declared.path}"
    return None
