"""What a session asks of its searches, and which of its arguments are findings; this is loaded with the options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

KEY = "flashinfer_perf_finding"  # in the file of one
NAME = "fuzz"  # of the extension, among the parts of a report
FOLDER = Path(".hypothesis", "perf-findings")
PROFILES = "perf", "perf-ci", "perf-nightly"


def is_finding(path: Path) -> bool:
    return path.suffix == ".json" and path.is_file() and f'"{KEY}"' in path.read_text(errors="replace")[:200]


@dataclass(frozen=True)
class Fuzzing:
    """Which shapes are searched, for how long, and the folder for findings."""

    flags: tuple[str, ...] = ()
    seconds: float | None = None
    findings: Path = FOLDER

    @classmethod
    def of(cls, config: pytest.Config) -> Fuzzing:
        named = config.getoption("perf_findings")
        folder = config.rootpath / FOLDER if named is None else config.invocation_params.dir / named
        return cls(tuple(config.getoption("perf_fuzz_flags")), config.getoption("perf_fuzz_seconds"), folder)
