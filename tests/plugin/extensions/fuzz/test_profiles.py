"""Hypothesis profiles of searches."""

import subprocess
import sys

import pytest
from hypothesis import settings

from pytest_flashinfer_perf.extensions.fuzz import profiles


@pytest.mark.parametrize(
    ("name", "examples", "derandomised", "kept"),
    [("perf", 200, False, True), ("perf-ci", 25, True, False), ("perf-nightly", 5000, False, True)],
)
def test_each_profile_is_registered_and_has_no_deadline(name, examples, derandomised, kept):
    profiles.register()
    profile = settings.get_profile(name)
    assert (profile.max_examples, profile.derandomize, profile.database is not None) == (examples, derandomised, kept)
    assert profile.deadline is None


NAMED = """
from hypothesis import given, settings, strategies as st

@given(st.none())
def test_it(_): assert settings.get_current_profile_name() == "perf-ci"
"""


def test_a_profile_is_there_for_who_names_it(tmp_path):
    """In a process of its own, where nobody has registered any."""
    (tmp_path / "test_it.py").write_text(NAMED)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=perf-ci"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("loaded", "name"), [("default", "perf"), ("ci", "perf-ci")])
def test_a_search_has_ours_where_hypothesis_has_its_own(loaded, name):
    profiles.register()
    settings.load_profile(loaded)
    try:
        assert profiles.chosen() is settings.get_profile(name)
    finally:
        settings.load_profile("no deadline")
