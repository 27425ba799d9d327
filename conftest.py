"""The suite is run by the plugin: say so where it is missing, before a test asks for an unknown fixture."""

import pytest


def pytest_configure(config):
    if not hasattr(config.option, "perf_suite"):
        raise pytest.UsageError("the plugin is not installed in this environment: pip install -e . (or: make bench)")
