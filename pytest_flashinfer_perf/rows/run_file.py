"""Read the file of a run: pytest-benchmark's JSON, and what this plugin adds to it. The only reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import FileError, read_json
from pytest_flashinfer_perf.rows import fields, row
from pytest_flashinfer_perf.rows.fields import FieldError, shown
from pytest_flashinfer_perf.rows.row import Identity, Row

T = TypeVar("T")
SCHEMA_KEY = "flashinfer_perf"
SCHEMA = 2
DISTRIBUTION = "pytest-flashinfer-perf"
LIBRARIES = ("flashinfer", "torch", "cuda", "cudnn", "cudnn_frontend")
SOFTWARE = (*LIBRARIES, "gpu", "driver", "cupti", "python_version")
FAILED = "failed"  # the outcome of a test that did not skip and did not pass


class RunError(FlashinferPerfError):
    """The file is not a run; the message names it and what to do."""


@dataclass(frozen=True, kw_only=True)
class Unmeasured:
    """A case without a row: how its test ended, and why."""

    identity: Identity
    outcome: str
    reason: str
    test: str | None = None
    ended: str | None = None  # how its process ended, if it ended badly
    line: str | None = None  # of a testlist, if no case came of it

    @property
    def case(self) -> str:
        return self.identity.case

    @property
    def headline(self) -> str:
        return self.reason.partition("\n")[0]

    def written(self) -> dict[str, Any]:
        """The case as JSON, without the fields that have no value."""
        values = fields.written(self)
        return {name: one for name, one in {**values.pop("identity"), **values}.items() if one is not None}


@dataclass(frozen=True)
class Roof:
    """What a device can do: bytes per second, and operations per second by type."""

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str


Roofs = Mapping[str, Mapping[str, Roof]]  # by device and by source


@dataclass(frozen=True, kw_only=True)
class Block:
    """The data that this plugin adds to the file beside the rows."""

    schema: int = SCHEMA
    plugin: str | None = None  # its version
    roofs: Roofs = field(default_factory=dict)
    unmeasured: tuple[Unmeasured, ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)  # what extensions add, each under a name of its own

    def written(self) -> dict[str, Any]:
        values: dict[str, Any] = {**fields.written(self), "unmeasured": [one.written() for one in self.unmeasured]}
        values |= {"schema": SCHEMA, "plugin": metadata.version(DISTRIBUTION), **values.pop("parts")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Commit:
    """The commit of the tests' repository."""

    id: str | None = None
    dirty: bool = False

    @classmethod
    def of(cls, commit_info: Mapping[str, Any]) -> Commit:
        commit = commit_info.get("id")
        return cls(None if commit in (None, "unversioned") else str(commit), bool(commit_info.get("dirty")))


@dataclass(frozen=True, kw_only=True)
class Run:
    """One process: the rows that it measured, the cases that it could not, and where it ran."""

    source: str
    when: datetime
    rows: tuple[Row, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    commit: Commit = Commit()
    block: Block | None = None  # None if only pytest-benchmark wrote the file

    @property
    def unmeasured(self) -> tuple[Unmeasured, ...]:
        return self.block.unmeasured if self.block else ()

    @property
    def roofs(self) -> Roofs:
        return self.block.roofs if self.block else {}

    def part(self, name: str, kind: type[T]) -> T | None:
        """What an extension has added to the run under this name; raises RunError where it is nothing of this kind."""
        value = self.block.parts.get(name) if self.block else None
        if value is None or isinstance(value, kind):
            return value
        try:
            return fields.read(kind, value, f"{SCHEMA_KEY}: {name}")
        except FieldError as error:
            raise RunError(f"{self.source}: {error}") from error

    @property
    def name(self) -> str:
        return Path(self.source).name

    @cached_property
    def ours(self) -> tuple[Row, ...]:
        """The rows that this plugin measured."""
        return tuple(row for row in self.rows if row.is_ours)

    @cached_property
    def by_case(self) -> dict[str, Row]:
        return {row.case: row for row in self.rows}

    @cached_property
    def twice(self) -> frozenset[str]:
        """Cases with more than one row."""
        return frozenset(case for case, count in Counter(row.case for row in self.rows).items() if count > 1)

    @property
    def driver(self) -> str | None:
        return self.machine.get("driver")

    @property
    def libraries(self) -> dict[str, Any]:
        return {name: self.machine.get(name) for name in LIBRARIES}

    def model(self, row: Row) -> str:
        """The GPU's name; the CPU's of a plain benchmark."""
        return str(row.identity.device_name or self.machine.get("cpu", {}).get("brand_raw", "unknown"))

    @property
    def failed(self) -> list[str]:
        return list(dict.fromkeys(one.case for one in self.unmeasured if one.outcome == FAILED))

    def ended(self, names: Iterable[str]) -> Unmeasured | None:
        """The case that was not measured, by the first of its names that is known; a failure before other outcomes."""
        ordered = sorted(self.unmeasured, key=lambda one: one.outcome == FAILED)
        by_case = {one.case: one for one in ordered}
        return next((by_case[name] for name in names if name in by_case), None)

    @property
    def fingerprint(self) -> tuple[frozenset[tuple[object, ...]], datetime | None]:
        """A number that is the same for copies of a file, and for the two files of a run that was saved and written."""
        rows = [(row.case, row.median, row.stats.stddev, row.execution.case_s) for row in self.rows]
        is_stamped = any(row.execution.case_s is not None for row in self.rows)
        return frozenset(rows), None if is_stamped else self.when


def load(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path)
    except FileError as error:
        raise RunError(str(error)) from error
    if document is None:
        raise RunError(f"{path} is empty: pytest-benchmark writes nothing where no benchmark was run")
    if not isinstance(document, dict):
        raise RunError(f"{path}: not a file of pytest-benchmark, it has no benchmarks")
    return document


def read(path: Path) -> Run:
    """A run of this plugin."""
    return verified(parse(load(path), str(path)))


def verified(run: Run) -> Run:
    if run.block is None:
        raise RunError(f"{run.source} is no run of this plugin: write one with pytest --benchmark-json=FILE")
    return run


def parse(document: Mapping[str, Any], source: str) -> Run:
    """Any run of pytest-benchmark."""
    if not isinstance(document.get("benchmarks"), list):
        raise RunError(f"{source}: not a file of pytest-benchmark, it has no benchmarks")
    try:
        return Run(
            source=source,
            when=_when(document.get("datetime")),
            rows=tuple(row.read(entry, f"benchmark {nth}") for nth, entry in enumerate(document["benchmarks"])),
            machine=_machine(document),
            commit=Commit.of(fields.object_in(document, "commit_info")),
            block=_block(document),
        )
    except FieldError as error:
        raise RunError(f"{source}: {error}") from error


def _machine(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Names and versions are text, or numbers as cuDNN's is; what pytest-benchmark writes besides may be anything."""
    machine = fields.object_in(document, "machine_info")
    for name in (*SOFTWARE, "node"):
        if not isinstance(machine.get(name), (str, int, type(None))):
            raise FieldError(f"machine_info: {name} must be text, got {shown(machine[name])}")
    fields.object_in(machine, "cpu", "machine_info")
    return machine


def _block(document: Mapping[str, Any]) -> Block | None:
    if document.get(SCHEMA_KEY) is None:
        return None
    own = fields.object_in(document, SCHEMA_KEY)
    if own.get("schema") != SCHEMA:
        raise FieldError(f"it has schema {shown(own.get('schema'))}, this version reads {SCHEMA}: update it")
    own_fields, block = fields.types_of(Block), fields.read(Block, own, SCHEMA_KEY)
    return replace(
        block, parts={name: value for name, value in own.items() if value is not None and name not in own_fields}
    )


def _when(text: Any) -> datetime:
    """Read the time of a run; pytest-benchmark before 5 wrote it without an offset, in UTC."""
    if text is None:
        return datetime.fromtimestamp(0, timezone.utc)
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise FieldError(f"datetime: {error}") from error
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


# Find runs: files, folders of files, or names in pytest-benchmark's storage.

STORAGE = Path(".benchmarks")


def read_all(names: Iterable[str | Path], storage: Path = STORAGE) -> list[Run]:
    """The runs, in the order of the arguments."""
    runs = [run for name in names for run in _read_one(name, storage)]
    if not runs:
        raise RunError("no files of results were given")
    verify_once(runs)
    return runs


def verify_once(runs: Iterable[Run]) -> None:
    """Refuse a copy of a run: it would count as another process that agrees with the first."""
    firsts: dict[object, Run] = {}
    for run in runs:
        first = firsts.setdefault(run.fingerprint, run)
        if first is not run:
            raise RunError(f"{run.source} is the same run as {first.source}: a process counts once, leave one out")


def storage_of(option: str) -> Path:
    """The folder that pytest's `--benchmark-storage` names."""
    return Path(option.removeprefix("file://"))


def files(name: str | Path, storage: Path = STORAGE) -> list[Path]:
    """The files that a name stands for."""
    if not str(name):
        raise RunError("the name of a run is empty: is a shell variable not set?")
    path = Path(name)
    if path.is_dir():
        try:
            return sorted(path.rglob("*.json"))
        except OSError as error:
            raise RunError(f"{path}: cannot be searched for runs: {error}") from error
    return [path if path.is_file() else _stored(str(path), storage)]


def _read_one(name: str | Path, storage: Path) -> list[Run]:
    """Read the runs of one name; other files of JSON may lie in a folder too."""
    loaded = {path: load(path) for path in files(name, storage)}
    is_folder = Path(name).is_dir()
    wanted = {path: one for path, one in loaded.items() if "benchmarks" in one or not is_folder}
    if not wanted:
        raise RunError(f"{name}: no file of pytest-benchmark in this folder")
    return [parse(document, str(path)) for path, document in wanted.items()]


def _stored(name: str, storage: Path) -> Path:
    """Find the latest run of that name, as `--benchmark-save` numbers them: MACHINE/0007_NAME.json."""
    numbered = "[0-9]" * 4
    patterns = (f"{numbered}_{name}.json", f"{name}.json", f"{name}_*.json") if "/" not in name else ()
    candidates = [file for pattern in patterns for file in storage.rglob(pattern)]
    if not candidates:
        raise RunError(f"{name}: no such file or folder, and no such name in {storage}")
    return max(candidates, key=lambda file: (file.name.partition("_")[0], file.stat().st_mtime))
