"""The configuration of evaluations: defaults, overridden by operation type, overridden by definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pytest_flashinfer_perf.api import FlashinferPerfError

BUNDLED = {
    "op_type_config": {
        "moe": {"required_matched_ratio": 0.95},
        "sampling": {"extra": {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}},
    }
}


class EvaluationConfigError(FlashinferPerfError):
    """The config is not valid; the message names the file and the field."""


class EvalConfig(BaseModel):
    """One layer; fields that are None are taken from the layer below."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    warmup_runs: int | None = Field(default=None, ge=0)
    iterations: int | None = Field(default=None, gt=0)
    num_trials: int | None = Field(default=None, gt=0)
    rtol: float | None = Field(default=None, gt=0)
    atol: float | None = Field(default=None, gt=0)
    required_matched_ratio: float | None = Field(default=None, gt=0, le=1)
    extra: dict[str, Any] = Field(default_factory=dict)


class Resolved(EvalConfig):
    """The resolved configuration of one definition."""

    warmup_runs: int = 10
    iterations: int = 50
    num_trials: int = 3
    rtol: float = 1e-2
    atol: float = 1e-2
    profile_baseline: bool = True
    timeout_seconds: float = 300


class BenchmarkConfig(EvalConfig):
    """The whole configuration: its own fields are the lowest layer and the settings of the run."""

    use_isolated_runner: bool = True
    timeout_seconds: float = Field(default=300, gt=0)
    definitions: list[str] | None = None
    solutions: list[str] | None = None
    profile_baseline: bool = True
    evaluators: list[str] = Field(default_factory=list)
    op_type_config: dict[str, EvalConfig] = Field(default_factory=dict)
    definition_config: dict[str, EvalConfig] = Field(default_factory=dict)

    @classmethod
    def default(cls, **overrides: Any) -> BenchmarkConfig:
        return _validated("the defaults", {**BUNDLED, **overrides})

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> BenchmarkConfig:
        """Read the file instead of the defaults; overrides replace its global fields."""
        return _validated(str(path), {**_loaded(Path(path)), **overrides})

    def resolve_eval_config(self, definition: Any) -> Resolved:
        layers = (self, self.op_type_config.get(definition.op_type), self.definition_config.get(definition.name))
        values: dict[str, Any] = {name: getattr(self, name) for name in OF_THE_RUN}
        extra: dict[str, Any] = {}
        for layer in filter(None, layers):
            values |= {name: value for name in LAYERED if (value := getattr(layer, name)) is not None}
            extra |= layer.extra
        return Resolved(**values, extra=extra)


OF_THE_RUN = ("profile_baseline", "timeout_seconds")
LAYERED = tuple(name for name in EvalConfig.model_fields if name != "extra")


def _loaded(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise EvaluationConfigError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(document or {}, dict) or not all(isinstance(name, str) for name in document or {}):
        raise EvaluationConfigError(f"{path}: must hold lines like `iterations: 50`, got {type(document).__name__}")
    return document or {}


def _validated(source: str, document: Mapping[str, Any]) -> BenchmarkConfig:
    try:
        return BenchmarkConfig.model_validate(dict(document))
    except ValidationError as error:
        raise EvaluationConfigError(f"{source}: {'; '.join(sentences(error))}") from error


def sentences(error: ValidationError) -> list[str]:
    """The faults of a model, each with the path of its field."""
    return [f"{'.'.join(map(str, fault['loc'])) or 'the whole'}: {fault['msg']}" for fault in error.errors()]


def option(text: str) -> tuple[str, Any]:
    """Parse `NAME=VALUE` of the command line, with the value in YAML."""
    name, equals, value = text.partition("=")
    if not equals or name.strip() not in BenchmarkConfig.model_fields:
        raise EvaluationConfigError(
            f"{text!r}: must be NAME=VALUE, names are {', '.join(BenchmarkConfig.model_fields)}"
        )
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise EvaluationConfigError(f"{text!r}: {' '.join(str(error).split())}") from error
