"""Hypothesis profiles of searches, registered when hypothesis is imported, which is why it is not imported here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypothesis import settings

DEFAULT, CI, NIGHTLY = "perf", "perf-ci", "perf-nightly"


def register() -> None:
    """A kernel compiles when it is first used, so that there is no deadline; and what is rejected costs little.

    Explaining would run as many examples again as shrinking does, and each is a launch. hypothesis calls this wherever
    it is imported: the database is the default profile's, and is not looked at here.
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
    """The profile that the run has loaded; ours where it is hypothesis's own."""
    from hypothesis import settings
    from hypothesis.errors import InvalidArgument

    loaded = settings.get_current_profile_name()
    name = {"default": DEFAULT, "ci": CI}.get(loaded, loaded)
    try:
        return settings.get_profile(name)
    except InvalidArgument:  # with HYPOTHESIS_NO_PLUGINS
        register()
        return settings.get_profile(name)
