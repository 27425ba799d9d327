"""Find the runs of a comparison: files, folders of files, or names in pytest-benchmark's storage."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import Run, RunError

STORAGE = Path(".benchmarks")


def read(names: Iterable[str | Path], storage: Path = STORAGE) -> list[Run]:
    """The runs, in the order of the arguments."""
    found = [run for name in names for run in _read_one(name, storage)]
    if not found:
        raise RunError("no files of results were given")
    verify_once(found)
    return found


def verify_once(found: Iterable[Run]) -> None:
    """Each run is a process: a copy of one would count as another that agrees with it."""
    seen: dict[object, Run] = {}
    for run in found:
        first = seen.setdefault(run.fingerprint, run)
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
    """Other files of JSON may lie in a folder too."""
    loaded = {path: run_file.load(path) for path in files(name, storage)}
    is_folder = Path(name).is_dir()
    wanted = {path: one for path, one in loaded.items() if "benchmarks" in one or not is_folder}
    if not wanted:
        raise RunError(f"{name}: no file of pytest-benchmark in this folder")
    return [run_file.parse(document, str(path)) for path, document in wanted.items()]


def _stored(name: str, storage: Path) -> Path:
    """The latest of that name, as `--benchmark-save` numbers them: 0007_NAME.json, below a folder per machine."""
    numbered = "[0-9]" * 4
    patterns = (f"{numbered}_{name}.json", f"{name}.json", f"{name}_*.json") if "/" not in name else ()
    found = [file for pattern in patterns for file in storage.rglob(pattern)]
    if not found:
        raise RunError(f"{name}: no such file or folder, and no such name in {storage}")
    return max(found, key=lambda file: (file.name.partition("_")[0], file.stat().st_mtime))
