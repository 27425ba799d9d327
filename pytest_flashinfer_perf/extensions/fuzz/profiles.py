"""Hypothesis profiles for searches, registered where one is named, and with what draws shapes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from pytest_flashinfer_perf.extensions.fuzz.fuzzing import PROFILES

DEFAULT, CI, NIGHTLY = PROFILES


def register() -> None:
    """Register the profiles: no deadline, since the first use of a kernel compiles it, and no health checks."""
    usual = settings.get_profile("default")
    settings.register_profile(
        DEFAULT,
        usual,
        max_examples=200,
        derandomize=False,
        deadline=None,
        print_blob=False,
        suppress_health_check=tuple(HealthCheck),
    )
    searching = settings.get_profile(DEFAULT)
    settings.register_profile(CI, searching, max_examples=25, derandomize=True, database=None)
    settings.register_profile(NIGHTLY, searching, max_examples=5000)


def chosen() -> settings:
    """The profile that the run has loaded, or ours instead of hypothesis's defaults."""
    loaded = settings.get_current_profile_name()
    return settings.get_profile({"default": DEFAULT, "ci": CI}.get(loaded, loaded))
