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
    found = DataSet(root)
    for file, _, definition in _parsed(found, "definitions", Definition):
        _add_definition(found, file, definition)
    for file, _, solution in _parsed(found, "solutions", Solution):
        _add_solution(found, file, solution)
    for file, line, trace in _parsed(found, "workloads", Trace):
        _add_workload(found, file, line, trace)
    return found


def _parsed(found: DataSet, folder: str, kind: type[M]) -> Iterator[tuple[Path, int | None, M]]:
    """What a folder's files hold, each with its place: a trace is a line, anything else is a file."""
    for file in sorted((found.root / folder).rglob("*.jsonl" if kind is Trace else "*.json")):
        if not inside(found.root, file):
            found.problem(file, "is a link that leaves the data set")
        elif file.is_file():
            for line, text in _texts(found, file):
                made = _validated(found, file, kind, text, line)
                if made is not None:
                    yield file, line, made


def inside(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


def _texts(found: DataSet, file: Path) -> Iterator[tuple[int | None, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found.problem(file, str(error))
        return
    if file.suffix == ".json":
        yield None, text
    else:
        yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _validated(found: DataSet, file: Path, kind: type[M], text: str, line: int | None) -> M | None:
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        found.problem(file, "; ".join(sentences(error)), line)
    except (ValueError, TypeError, RecursionError, MemoryError) as error:  # raised by the model's own validators
        found.problem(file, f"{type(error).__name__}: {error}", line)
    return None


def _add_definition(found: DataSet, file: Path, definition: Definition) -> None:
    if definition.name in found.definitions:
        found.problem(file, f"name: {definition.name!r} is in {found.defined_in[definition.name].name} already")
    elif _named_well(found, file, name=definition.name, op_type=definition.op_type):
        found.definitions[definition.name] = definition
        found.defined_in[definition.name] = file


def _add_solution(found: DataSet, file: Path, solution: Solution) -> None:
    known = {s.name for others in found.solutions.values() for s in others}
    if solution.definition not in found.definitions:
        found.problem(file, f"definition: {solution.definition!r} does not exist")
    elif solution.name in known:
        found.problem(file, f"name: another solution is called {solution.name!r} too")
    elif _named_well(found, file, author=solution.author):
        found.solutions.setdefault(solution.definition, []).append(solution)


def _named_well(found: DataSet, file: Path, **names: str) -> bool:
    """Whether these names can be names of folders and files of traces."""
    for field_name, name in names.items():
        if not FOLDER_NAME.fullmatch(name) or name in (".", ".."):
            found.problem(file, f"{field_name}: {name!r} cannot be the name of a file")
            return False
    return True


def _add_workload(found: DataSet, file: Path, line: int | None, trace: Trace) -> None:
    definition = found.definitions.get(trace.definition)
    if trace.solution is not None or trace.evaluation is not None:
        found.problem(file, "solution, evaluation: a workload has neither", line)
    elif definition is None:
        found.problem(file, f"definition: {trace.definition!r} does not exist", line)
    elif wrong := unusable(trace.workload, definition, found.root):
        found.problem(file, wrong, line)
    elif any(w.uuid == trace.workload.uuid for w in found.workloads.get(definition.name, ())):
        found.problem(file, f"workload.uuid: {trace.workload.uuid!r} exists already", line)
    else:
        found.workloads.setdefault(definition.name, []).append(trace.workload)


def unusable(workload: Workload, definition: Definition, root: Path) -> str | None:
    """The reason why this workload cannot be run, as far as it can be found without loading it; else None."""
    for axis in definition.var_axes:
        if axis not in workload.axes:
            return f"workload.axes.{axis}: is missing"
    for name, given in workload.inputs.items():
        if name not in definition.inputs:
            return f"workload.inputs.{name}: {definition.name} has no such input"
        if given.type == "scalar" and definition.inputs[name].shape is not None:
            return f"workload.inputs.{name}: must be a tensor, got a scalar"
        if given.type == "safetensors" and (wrong := _unusable_blob(given, root)):
            return f"workload.inputs.{name}.path: {wrong}"
    return None


def _unusable_blob(given: Any, root: Path) -> str | None:
    file = root / given.path
    if not inside(root, file):
        return f"{given.path} leaves the data set"
    if not file.is_file():
        return f"{given.path} does not exist"
    with file.open("rb") as opened:
        if opened.read(8) == b"version ":
            return f"{given.path} is a Git LFS pointer: git lfs pull --include {given.path}"
    return None
