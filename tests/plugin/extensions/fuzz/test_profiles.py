"""Hypothesis profiles of searches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings

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
    assert Phase.explain not in profile.phases


def test_who_only_imports_hypothesis_meets_no_warning_and_no_file_of_ours(tmp_path):
    """Profiles come by an entry point. Where hypothesis cannot make its folder of examples, it warns whoever asks."""
    (tmp_path / ".hypothesis").touch()
    script = (
        "from hypothesis import settings; settings.get_profile('perf'); settings.get_profile('perf-ci');"
        "import sys; assert [m for m in sys.modules if m.startswith('pytest_flashinfer_perf')] == ["
        "'pytest_flashinfer_perf', 'pytest_flashinfer_perf.extensions', 'pytest_flashinfer_perf.extensions.fuzz', "
        "'pytest_flashinfer_perf.extensions.fuzz.profiles']"
    )
    words = [sys.executable, "-W", "error", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(profiles.__file__).parents[3])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".hypothesis"]


@pytest.mark.parametrize(("loaded", "name"), [("default", "perf"), ("ci", "perf-ci")])
def test_a_search_has_ours_where_hypothesis_has_its_own(loaded, name):
    profiles.register()
    settings.load_profile(loaded)
    try:
        assert profiles.chosen() is settings.get_profile(name)
    finally:
        settings.load_profile("no deadline")
