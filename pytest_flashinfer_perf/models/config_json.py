"""Typed access to the fields of a config.json; an unusable field is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.rows.fields import shown

LARGEST = 2**31 - 1  # a width above it is a mistake, and would overflow the kernels' indices
MOST_BYTES = 1 * 2**20  # of a config.json; a larger file is something else


class ConfigError(FlashinferPerfError):
    """A config.json that cannot be used."""


@dataclass(frozen=True)
class Fields:
    """One object of a config.json, and where it is."""

    known: Mapping[str, Any]
    source: str

    def __contains__(self, name: str) -> bool:
        return self.known.get(name) is not None

    def fault(self, name: str, sentence: str) -> ConfigError:
        return ConfigError(f"{self.source}: {name} {sentence}")

    def number(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The first of the names that is there, as models spell the same field differently."""
        name = self._first(names)
        if name is None and default is not None:
            return default
        value = self.known.get(name) if name else None
        if value is None:
            raise self.fault(" or ".join(names), "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(str(name), f"must be a whole number from {least} to {most}, got {shown(value)}")
        return value

    def optional(self, name: str) -> int | None:
        return self.number(name) if name in self else None

    def factor(self, name: str, default: float) -> float:
        value = self.known.get(name)
        if value is None:
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < LARGEST:
            raise self.fault(name, f"must be a positive number, got {shown(value)}")
        return float(value)

    def switch(self, name: str, default: bool = False) -> bool:
        value = self.known.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fault(name, f"must be true or false, got {shown(value)}")
        return value

    def word(self, *names: str, default: str = "") -> str:
        name = self._first(names)
        value = default if name is None else self.known[name]
        if not isinstance(value, str):
            raise self.fault(str(name), f"must be a string, got {shown(value)}")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self._each(name, str, "a list of strings"))

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(self._each(name, int, "a list of whole numbers"))

    def below(self, name: str) -> Fields:
        """The object under a field, empty where there is none."""
        value = self.known.get(name)
        if not isinstance(value, Mapping) and value is not None:
            raise self.fault(name, f"must be an object, got {shown(value)}")
        return Fields(value or {}, f"{self.source}: {name}")

    def language(self) -> Fields:
        """The language model's part of a multimodal one; what it lacks is beside it."""
        return replace(self, known={**self.known, **self.below("text_config").known})

    def _first(self, names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in self), None)

    def _each(self, name: str, kind: type, wanted: str) -> list[Any]:
        value = self.known.get(name)
        listed = [] if value is None else value
        if not isinstance(listed, list) or not all(isinstance(one, kind) for one in listed):
            raise self.fault(name, f"must be {wanted}, got {shown(value)}")
        return listed


def read(path: Path) -> Fields:
    """Read a config.json or its folder; the quantisation may be in a file beside it."""
    file = path / "config.json" if path.is_dir() else path
    config, beside = _parsed(file), file.with_name("hf_quant_config.json")
    if "quantization_config" in config or not beside.is_file():
        return config
    stored = _parsed(beside).below("quantization").known
    return replace(config, known={**config.known, "quantization_config": stored})


def _parsed(file: Path) -> Fields:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{file} is larger than {MOST_BYTES} bytes: name the config.json of a model")
        return parse(file.read_text(encoding="utf-8-sig"), str(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} could not be read: {error}: name a config.json, or the folder of one") from error


def parse(text: str, source: str) -> Fields:
    try:
        known = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}") from error
    if not isinstance(known, dict):
        raise ConfigError(f"{source} holds {shown(known)}, where a config.json holds an object")
    return Fields(known, source)
