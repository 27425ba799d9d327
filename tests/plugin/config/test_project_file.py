"""One settings file: found, read, and refused where it cannot be understood."""

import pytest

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.config.project_file import ProjectFileError

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
        project_file.find(tmp_path)
    assert str(tmp_path / "flashinfer-perf.toml") in str(error.value)


def test_a_section_holds_tables(tmp_path):
    (tmp_path / "flashinfer-perf.toml").write_text('[thresholds]\n"*" = 3\n')
    with pytest.raises(ProjectFileError, match=r"\[thresholds\] must hold lines like"):
        project_file.find(tmp_path).section("thresholds", ["slower"])


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ProjectFileError, match=r"none\.toml"):
        project_file.find(tmp_path, "none.toml")


def test_pytest_ends_with_the_sentence(pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": "[threshold]\n"})
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*flashinfer-perf.toml: sections: unknown name*"])
