"""The settings of a run, read from the options of pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.gate import match
from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.option import SECONDS, values_of
from pytest_flashinfer_perf.settings.project_file import ProjectFile
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, Settings

if TYPE_CHECKING:
    from pytest_flashinfer_perf.gate.verdict import Rules

RULES: pytest.StashKey[Rules] = pytest.StashKey()  # of the config


def _refuse_empty(config: pytest.Config) -> None:
    """Refuse an empty value, which would pass for an option that was not given."""
    for one in options.of_all(config):
        value = getattr(config.option, one.dest)
        values = value if isinstance(value, list) else [value]
        if not one.may_be_empty and any(map(_is_empty, values)):
            raise pytest.UsageError(f"{one.name}: empty name: is a shell variable unset?")


def _is_empty(value: object) -> bool:
    return isinstance(value, str) and not value.strip(" ,")


def read(config: pytest.Config) -> Settings:
    _refuse_empty(config)
    project = _project(config)
    _verify_gate(config, project)
    bounds, quarantined = project_file.read_tolerances(project), project_file.read_quarantine(project)
    options = config.option
    return Settings(
        **values_of(Settings, options),
        project=project,
        measuring=Measuring(**values_of(Measuring, options), max_time=_max_time(config)),
        checking=Checking(**values_of(Checking, options), tolerances=bounds),
        quarantine=quarantined,
    )


def _max_time(config: pytest.Config) -> float:
    """An option of pytest-benchmark, which takes any number."""
    seconds = float(config.getoption("benchmark_max_time", Measuring.max_time))
    if not SECONDS.allows(seconds):
        raise pytest.UsageError(f"--benchmark-max-time: {SECONDS.refusal(seconds)}")
    return seconds


def _verify_gate(config: pytest.Config, project: ProjectFile) -> None:
    """Verify what `--perf-gate` uses without it too, so that a mistake shows when it is made."""
    match.allowed(config.getoption("perf_gate_allow"))
    if project.sections:
        rules_of(config, project)


def rules_of(config: pytest.Config, project: ProjectFile) -> Rules:
    """Read the rules of the settings file, once."""
    if RULES not in config.stash:
        from pytest_flashinfer_perf.gate import verdict

        config.stash[RULES] = verdict.read_rules(project, config.hook)
    return config.stash[RULES]


def _project(config: pytest.Config) -> ProjectFile:
    """A named file is relative to the current folder; the default one is beside the project's pytest settings."""
    named = config.getoption("perf_config")
    return project_file.find(config.invocation_params.dir if named else config.rootpath, named)
