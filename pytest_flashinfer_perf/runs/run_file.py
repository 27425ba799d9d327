"""The file of a run: pytest-benchmark's JSON, with what this plugin says beside the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError

SCHEMA_KEY = "flashinfer_perf"
SCHEMA = {"schema": 1}
DISTRIBUTION = "pytest-flashinfer-perf"


class RunError(FlashinferPerfError):
    """A file that is no run; the sentence names it and says what to do."""


def block(roofs: Mapping[str, Any], unmeasured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What stands beside the rows."""
    return {**SCHEMA, "plugin": metadata.version(DISTRIBUTION), "roofs": roofs, "unmeasured": unmeasured}


def brief(own: Mapping[str, Any]) -> dict[str, Any]:
    """For a storage that copies it into the document of each row: nothing that grows with the run."""
    left = {name: value for name, value in own.items() if name not in ("unmeasured", "shard")}
    shard = {name: value for name, value in own.get("shard", {}).items() if name != "tests"}
    return {**left, "unmeasured_count": len(own["unmeasured"]), **({"shard": shard} if shard else {})}


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
