"""The file of a run: pytest-benchmark's JSON, with what this plugin says beside the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError

SCHEMA_KEY = "flashinfer_perf"
SCHEMA = {"schema": 1}


class RunError(FlashinferPerfError):
    """A file that is no run; the sentence names it and says what to do."""


def read(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8") or "null")
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}") from error
    if said is None:
        raise RunError(f"{path} is empty: pytest-benchmark writes nothing where no benchmark was run")
    own = said.get(SCHEMA_KEY) if isinstance(said, dict) else None
    if not isinstance(own, dict) or not isinstance(said.get("benchmarks"), list):
        raise RunError(f"{path} is no run of this plugin: write one with pytest --benchmark-json=FILE")
    if own.get("schema") != SCHEMA["schema"]:
        raise RunError(f"{path} has schema {own.get('schema')}, this version reads {SCHEMA['schema']}: update it")
    return dict(said)
