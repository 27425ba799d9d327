"""Published models whose config.json is part of this package, with their sources."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import errors
from pytest_flashinfer_perf.extensions.models import architectures
from pytest_flashinfer_perf.extensions.models.config_json import ConfigError, Fields
from pytest_flashinfer_perf.extensions.models.description import Description

FOLDER = Path(__file__).parent / "configs"


@functools.cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@functools.cache
def file_of(name: str) -> Mapping[str, Any]:
    """The whole file: its config, and the number of parameters that is published; where and when each was taken."""
    if name not in names():
        raise ConfigError(errors.unknown(name, names()))
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content


@functools.cache
def model(name: str) -> Description:
    return architectures.describe(Fields(file_of(name)["config"], name), name)


def is_path(text: str) -> bool:
    """A config.json or its folder, in contrast to a name; what exists under a name that no model has is a path."""
    if text.endswith(".json") or "/" in text or Path(text, "config.json").is_file():
        return True
    return text not in names() and os.path.lexists(text)


def find(text: str) -> Description:
    if not text.strip():
        raise ConfigError("an empty name is no model: name a config.json, the folder of one, or a shipped model")
    return architectures.read(Path(text)) if is_path(text) else model(text)
