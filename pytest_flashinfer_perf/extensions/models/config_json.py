"""Typed access to the fields of a config.json; an unusable field is an error that names it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, fields, file_io

LARGEST = 2**31 - 1  # a width above it is a mistake, and would overflow the kernels' indices
MOST_BYTES = 1 * 2**20  # of a config.json; a larger file is something else


class ConfigError(FlashinferPerfError):
    """A config.json that cannot be used."""


@dataclass(frozen=True)
class Fields:
    """One object of a config.json, and where it is."""

    values: Mapping[str, Any]
    source: str

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def fault(self, name: str, sentence: str) -> ConfigError:
        return ConfigError(f"{self.source}: {name} {sentence}")

    def number(self, *names: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The first of the names that is there, as models spell the same field differently."""
        name = next((name for name in names if name in self), None)
        if name is None and default is not None:
            return default
        if name is None:
            raise self.fault(" or ".join(names), "is missing")
        value = self.values[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(name, f"must be a whole number from {least} to {most}, got {fields.shown(value)}")
        return value

    def optional(self, name: str) -> int | None:
        return self.number(name) if name in self else None

    def factor(self, name: str) -> float:
        """A number that other numbers are multiplied by, 1 where there is none."""
        value = self._of(name, (int, float), 1.0, wanted="a positive number")
        if isinstance(value, bool) or not 0 < value < LARGEST:
            raise self.fault(name, f"must be a positive number, got {fields.shown(value)}")
        return float(value)

    def switch(self, name: str) -> bool:
        return bool(self._of(name, bool, False, wanted="true or false"))

    def word(self, name: str, default: str = "") -> str:
        return str(self._of(name, str, default, wanted="a string"))

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self._each(name, str, "a list of strings"))

    def numbers(self, name: str) -> tuple[int, ...]:
        return tuple(self._each(name, int, "a list of whole numbers"))

    def below(self, name: str) -> Fields:
        """The object under a field, empty where there is none."""
        return Fields(self._of(name, Mapping, {}, wanted="an object"), f"{self.source}: {name}")

    def language(self, defaults: Mapping[str, Any]) -> Fields:
        """The language model's part of a multimodal one; what it lacks is beside it, or as by default."""
        return replace(self, values={**defaults, **self.values, **self.below("text_config").values})

    def _of(self, name: str, kind: type | tuple[type, ...], default: Any, wanted: str) -> Any:
        value = self.values.get(name)
        if value is not None and not isinstance(value, kind):
            raise self.fault(name, f"must be {wanted}, got {fields.shown(value)}")
        return default if value is None else value

    def _each(self, name: str, kind: type, wanted: str) -> list[Any]:
        listed: list[Any] = self._of(name, list, [], wanted)
        if not all(isinstance(one, kind) for one in listed):
            raise self.fault(name, f"must be {wanted}, got {fields.shown(listed)}")
        return listed


def read(path: Path) -> Fields:
    """Read a config.json or its folder; the quantisation may be in a file beside it."""
    file = path / "config.json" if path.is_dir() else path
    config, beside = _parsed(file), file.with_name("hf_quant_config.json")
    if "quantization_config" in config or not beside.is_file():
        return config
    stored = _parsed(beside).below("quantization").values
    return replace(config, values={**config.values, "quantization_config": stored})


def _parsed(file: Path) -> Fields:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{file} is larger than {MOST_BYTES} bytes: name the config.json of a model")
        return parse(file_io.read_text(file), str(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} could not be read: {error}: name a config.json, or the folder of one") from error


def parse(text: str, source: str) -> Fields:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{source} holds {fields.shown(values)}, where a config.json holds an object")
    return Fields(values, source)
