"""The files that a session writes: each is tried beforehand, and none is a file that the session reads.

What `--benchmark-json` and `--benchmark-save` name is pytest-benchmark's, which writes it in place, and not at all for
a run without rows. Here it is whole: with rows, or with the reasons why there are none. An older one goes before the
first test, in any session (plugin/__init__.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.config.usage import not_written
from pytest_flashinfer_perf.files import verify_outputs, write_json
from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.board import Board
from pytest_flashinfer_perf.running.journal import json_of
from pytest_flashinfer_perf.runs.run_file import RunError

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
READ = (
    *("perf_testlist", "perf_model", "perf_config", "perf_shard_by"),
    *("perf_trace_config", "perf_only", "perf_plant", "perf_plan"),
)
FOLDERS = {"perf_vllm_csv": "any.csv", "perf_findings": "any.json"}


def verify(config: pytest.Config, settings: Settings) -> None:
    """Raise before anything is measured, if a file cannot be written or must not be."""
    here = config.invocation_params.dir
    named = {"--benchmark-json": json_of(config), "--junitxml": config.getoption("xmlpath", None)}
    named |= {f"--perf-{name}": config.getoption(f"perf_{name}") for name in ("html", "csv")}
    outputs = {option: here / path if path else None for option, path in named.items()}
    for name, any_file in FOLDERS.items():
        folder = config.getoption(name)
        outputs[f"--{name.replace('_', '-')}"] = here / folder / any_file if folder else None
    if settings.fuzzing.on:
        outputs["--perf-findings"] = settings.fuzzing.findings / "any.json"
    outputs["--benchmark-storage"] = _storage(config) if _saves(config) else None
    programs = [path for path in outputs.values() if path and path.suffix == ".py"]
    verify_outputs(outputs, [*_read(config, settings), *programs])


def _saves(config: pytest.Config) -> bool:
    options = ("perf_save_baseline", "benchmark_save", "benchmark_autosave")
    return any(config.getoption(option, None) for option in options)


def _storage(config: pytest.Config) -> Path | None:
    """A file of the folder, None for a storage that is not one."""
    folder = config.getoption("benchmark_storage").removeprefix("file://")
    return None if "://" in folder else config.invocation_params.dir / folder / "any.json"


def _read(config: pytest.Config, settings: Settings) -> Iterator[Path]:
    """Files that the session reads, as far as it is known before tests are collected."""
    here = config.invocation_params.dir
    for name in READ:
        value = config.getoption(name)
        yield from (here / path for path in (value if isinstance(value, list) else [value]) if path)
    yield from (here / argument.partition("::")[0] for argument in config.args)
    yield from filter(None, (settings.project.path, config.inipath))
    baseline = config.getoption("perf_gate")
    if baseline:
        with suppress(RunError):  # which is said where it is read
            yield from runs.files(baseline, runs.storage_of(config.getoption("benchmark_storage")))


class ResultFiles:
    """Writes the file of `--benchmark-json` and the saved run, instead of pytest-benchmark."""

    def __init__(self, config: pytest.Config, board: Board) -> None:
        self._config = config
        self._board = board
        self._path = json_of(config)
        self._written = False
        self._lost: dict[str, OSError] = {}

    def _take_over(self) -> None:
        benchmarks: Any = self._config.pluginmanager.get_plugin("pytest-benchmark")
        if benchmarks is not None:
            benchmarks.save_json = self._write
            if hasattr(benchmarks.storage, "get"):  # a folder
                benchmarks.storage.save = self._save_in(benchmarks.storage)

    def _write(self, document: Any) -> None:
        self._written = True
        if self._path is not None:
            self._try("--benchmark-json", self._path, document)

    def _save_in(self, storage: Any) -> Any:
        def save(document: Any, name: str) -> None:
            self._try("--benchmark-storage", storage.get(f"{storage._next_num}_{name}.json"), document)  # noqa: SLF001

        return save

    def _try(self, option: str, path: Path, document: Any) -> None:
        try:
            write_json(path, document, indent=4)
        except OSError as error:
            self._lost[option] = error

    @pytest.hookimpl(specname="pytest_sessionfinish", wrapper=True, tryfirst=True)
    def pytest_sessionfinish_before_all_others(self, session: pytest.Session) -> Generator[None, object, object]:
        """Also silences pytest-benchmark's warning that it saves nothing, where this class writes or nothing ran."""
        self._take_over()
        is_known = self._is_due(session) or session.exitstatus not in ENDED
        if is_known and not _saves(self._config):
            warnings.filterwarnings("ignore", message="Not saving anything, no benchmarks have been run")
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Runs after pytest-benchmark's own hook, which is a wrapper, and after the gate, which judges in any case."""
        if self._is_due(session) and not self._written:
            self._write(self._without_rows())
            if "--benchmark-json" not in self._lost:
                self._board.notes.append(f"{self._path}: no case was measured, the file has the reasons and no rows")
        self._board.notes += [not_written(session, option, error) for option, error in self._lost.items()]

    def _is_due(self, session: pytest.Session) -> bool:
        is_whole_shard = self._config.getoption("perf_shard") and session.exitstatus in ENDED
        return self._path is not None and bool(self._board.is_ours or is_whole_shard)

    def _without_rows(self) -> Any:
        hook = self._config.hook
        of_run = {"machine_info": provenance.machine(self._config)}
        of_run["commit_info"] = hook.pytest_benchmark_generate_commit_info(config=self._config)
        made = hook.pytest_benchmark_generate_json(config=self._config, benchmarks=[], include_data=True, **of_run)
        hook.pytest_benchmark_update_json(config=self._config, benchmarks=[], output_json=made)
        return made
