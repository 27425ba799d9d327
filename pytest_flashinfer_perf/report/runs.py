"""Runs as reports see them: read from pytest-benchmark's JSON, or handed over by the session that measured them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.runs import run_file
from pytest_flashinfer_perf.runs.run_file import SCHEMA_KEY, RunError

Row = Mapping[str, Any]
OURS = ("case", "status", "instrument")  # what a benchmark that sets a field of its own does not have


@dataclass(frozen=True)
class Run:
    """What one session measured and could not measure, and where; `others` are benchmarks without the perf fixture."""

    name: str
    when: str
    machine: Mapping[str, Any]
    commit: Mapping[str, Any]
    rows: tuple[Row, ...]
    unmeasured: tuple[Row, ...] = ()
    roofs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    others: int = 0
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)


def place(row: Row) -> str:
    """Which device it was: times of two cards of one model are not the same measurement."""
    return str(row.get("gpu_uuid") or row.get("device") or "")


def read(paths: Iterable[Path]) -> list[Run]:
    """Oldest first, whatever their order."""
    return sorted(map(_read, paths), key=lambda run: run.when)


def _read(path: Path) -> Run:
    said = run_file.read(path)
    own = said[SCHEMA_KEY]
    try:
        ours = [benchmark for benchmark in said["benchmarks"] if set(OURS) <= set(benchmark["extra_info"])]
        return Run(
            name=path.name,
            when=str(said["datetime"]),
            machine=said["machine_info"] or {},
            commit=said["commit_info"] or {},
            rows=tuple(map(_row, ours)),
            unmeasured=tuple(own.get("unmeasured", ())),
            roofs=own.get("roofs", {}),
            others=len(said["benchmarks"]) - len(ours),
            document=said,
        )
    except KeyError as error:
        raise RunError(f"{path} lacks {error}: it is not as pytest-benchmark wrote it") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} is not as pytest-benchmark wrote it: {error}") from error


def _row(benchmark: Mapping[str, Any]) -> Row:
    """As the session had it; `--benchmark-save` keeps no samples unless `--benchmark-save-data` says so."""
    stats, extra = benchmark["stats"], benchmark["extra_info"]
    times = [stats["median"], stats["mean"]]
    if min(times) <= 0 or not all(map(math.isfinite, (*times, *stats.get("data", ())))):
        raise ValueError(f"{benchmark['fullname']} has a time that is none")
    return {
        **extra,
        "params": benchmark["params"] or {},
        "samples": stats.get("data", []),
        "rounds": max(1, stats["rounds"]),
        "median": stats["median"],
        "mean": stats["mean"],
        "std": stats["stddev"],
        "spread": stats["stddev"] / stats["mean"] if stats["rounds"] > 1 else None,
    }
