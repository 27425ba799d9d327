"""One settings file: found, read, and refused where it cannot be understood."""

import re
from dataclasses import replace

import pytest

from pytest_flashinfer_perf.checking.check import Tolerance
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFileError, Quarantined

THRESHOLDS = '[{}thresholds]\n"attention/*" = {{ slower = "2%" }}\n'


def test_a_folder_without_a_file_settles_nothing(tmp_path):
    assert project_file.find(tmp_path).section("thresholds", ["slower"]) == {}


def test_our_own_file_comes_before_pyproject(tmp_path):
    (tmp_path / "pyproject.toml").write_text(THRESHOLDS.format("tool.flashinfer-perf.").replace("2%", "9%"))
    assert project_file.find(tmp_path).section("thresholds", ["slower"]) == {"attention/*": {"slower": "9%"}}
    (tmp_path / "flashinfer-perf.toml").write_text(THRESHOLDS.format(""))
    assert project_file.find(tmp_path).section("thresholds", ["slower"]) == {"attention/*": {"slower": "2%"}}


def test_a_named_file_is_taken_from_the_folder(tmp_path):
    (tmp_path / "other.toml").write_text(THRESHOLDS.format(""))
    assert project_file.find(tmp_path, "other.toml").path == tmp_path / "other.toml"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[threshold]\n", r"sections: unknown name 'threshold', did you mean thresholds\?"),
        ("tolerances = [\n", "Unclosed array|Invalid value|flashinfer-perf.toml"),
    ],
)
def test_what_cannot_be_understood_names_the_file(tmp_path, text, sentence):
    (tmp_path / "flashinfer-perf.toml").write_text(text)
    with pytest.raises(ProjectFileError, match=sentence) as error:
        project_file.find(tmp_path).verify(())
    assert str(tmp_path / "flashinfer-perf.toml") in str(error.value)


def test_a_section_holds_tables(tmp_path):
    (tmp_path / "flashinfer-perf.toml").write_text('[thresholds]\n"*" = 3\n')
    with pytest.raises(ProjectFileError, match=r"\[thresholds\] must hold lines like"):
        project_file.find(tmp_path).section("thresholds", ["slower"])


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ProjectFileError, match=r"none\.toml"):
        project_file.find(tmp_path, "none.toml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("tool = 3\n", "tool must be a table, got 3"),
        ("[tool]\nflashinfer-perf = 'x'\n", "flashinfer-perf must be a table, got 'x'"),
        ("[tool.flashinfer-perf.tolerance]\n", "sections: unknown name 'tolerance', did you mean tolerances?"),
    ],
)
def test_what_pyproject_says_wrongly_names_the_table(tmp_path, text, sentence):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ProjectFileError, match=re.escape(sentence)):
        project_file.find(tmp_path).verify(())


def settings(tmp_path, text):
    (tmp_path / "flashinfer-perf.toml").write_text(text)
    return project_file.find(tmp_path)


def test_tolerances_are_those_of_the_last_glob_that_matches(tmp_path):
    text = """
        [tolerances]
        "decode" = { rtol = 0.1 }
        "decode/fa*" = { rtol = 0.2, atol = 0.5, reason = "known" }
        "decode/fa3" = { matched = 0.9, output = 1 }
        "gemm" = { absolute = 1 }
        "other/x" = { absolute = 1, output = 2 }
        """
    overrides = project_file.read_tolerances(settings(tmp_path, text))
    own = (Tolerance(0.01, 0.02, 1.0), Tolerance(0.03, 0.04, 1.0))
    changed = {name: project_file.applied(overrides, "decode", name, own) for name in ("fa3", "cudnn")}
    assert changed["fa3"] == (replace(own[0], rtol=0.2, atol=0.5), replace(own[1], matched=0.9))
    assert changed["cudnn"] == (replace(own[0], rtol=0.1), own[1])
    assert project_file.applied(overrides, "other", "x", own) == own
    known = {"decode": ["fa3"], "gemm": []}
    assert list(project_file.without_match(overrides, known)) == ["gemm", "other/x"]


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ("{ rtol = -1 }", "rtol must be a number of at least 0, got -1"),
        ("{ rtol = true }", "rtol must be a number of at least 0, got True"),
        ("{ rtol = nan }", "rtol must be a number of at least 0, got nan"),
        ("{ rtol = inf }", "rtol must be a number of at least 0, got inf"),
        ("{ rtol = 1, output = -1 }", "output must be the index of an output, counted from 0, got -1"),
        ("{ rtol = 1, output = true }", "output must be the index of an output"),
        ('{ reason = "x" }', "has no bound, give it one of rtol, atol, scale, matched, absolute"),
        ("{ rtool = 1 }", "unknown name 'rtool', did you mean rtol?"),
    ],
)
def test_a_tolerance_that_is_none_names_its_glob(tmp_path, entry, sentence):
    with pytest.raises(ProjectFileError, match=re.escape(sentence)) as error:
        project_file.read_tolerances(settings(tmp_path, f'[tolerances]\n"a*" = {entry}\n'))
    assert "[tolerances] 'a*': " in str(error.value)


def test_a_quarantine_needs_a_reason_and_a_link(tmp_path):
    text = '[quarantine]\n"decode/*" = { reason = "hangs", link = "https://x" }\n'
    [entry] = project_file.read_quarantine(settings(tmp_path, text))
    assert (entry.which, entry.sentence) == ("decode/*", "quarantined: hangs (https://x)")
    for lacking in ('reason = "hangs"', 'reason = " ", link = "x"', 'link = "x"', 'reason = 3, link = "x"'):
        with pytest.raises(ProjectFileError, match=r"\[quarantine\] 'a': needs a (reason|link): give the reason"):
            project_file.read_quarantine(settings(tmp_path, f'[quarantine]\n"a" = {{ {lacking} }}\n'))


@pytest.mark.parametrize(("which", "held"), [("t.py::a[1]", True), ("t.py::*", True), ("t.py::b", False), ("*", False)])
def test_a_quarantine_holds_tests_by_id_or_glob(which, held):
    assert Quarantined(which, "hangs", "x").holds_test("t.py::a[1]") is held


@pytest.mark.parametrize("day", ["2026-11-28", '"2026-11-28"'])
def test_a_quarantine_may_say_since_when(tmp_path, day):
    text = '[quarantine]\n"a" = {{ reason = "hangs", link = "x", date = {} }}\n'
    [entry] = project_file.read_quarantine(settings(tmp_path, text.format(day)))
    assert entry.sentence == "quarantined since 2026-11-28: hangs (x)"
    with pytest.raises(ProjectFileError, match=r"'a': date must be a day as 2026-11-28, got 'soon'"):
        project_file.read_quarantine(settings(tmp_path, text.format('"soon"')))
