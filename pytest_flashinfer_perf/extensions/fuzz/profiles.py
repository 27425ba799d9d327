"""Hypothesis profiles for searches, registered by hypothesis when it is imported; so this module does not import it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis import settings

DEFAULT, CI, NIGHTLY = "perf", "perf-ci", "perf-nightly"


def register() -> None:
    """Register the profiles: no deadline, since the first use of a kernel compiles it, and no health checks.

    The phase `explain` would launch as many examples again as shrinking does. The database is left to the default
    profile, since hypothesis calls this function wherever it is imported.
    """
    from hypothesis import HealthCheck, Phase, settings

    usual = settings.get_profile("default")
    settings.register_profile(
        DEFAULT,
        usual,
        max_examples=200,
        derandomize=False,
        deadline=None,
        print_blob=False,
        phases=[phase for phase in Phase if phase is not Phase.explain],
        suppress_health_check=tuple(HealthCheck),
    )
    searching = settings.get_profile(DEFAULT)
    settings.register_profile(CI, searching, max_examples=25, derandomize=True, database=None)
    settings.register_profile(NIGHTLY, searching, max_examples=5000)


def chosen() -> settings:
    """The profile that the run has loaded, or ours instead of hypothesis's defaults."""
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    loaded = settings.get_current_profile_name()
    name = {"default": DEFAULT, "ci": CI}.get(loaded, loaded)
    try:
        return settings.get_profile(name)
    except InvalidArgument:  # with HYPOTHESIS_NO_PLUGINS
        register()
        return settings.get_profile(name)
