"""The settings file's thresholds, and how sure a median is."""

import math
import re

import pytest
from made import row, run

from pytest_flashinfer_perf.gate import figures, thresholds
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFileError


def test_an_outlier_does_not_blur_a_median():
    [calm] = run(row(stddev=0.01)).rows
    assert figures.median_uncertainty(calm) == pytest.approx(0.01 * math.sqrt(math.pi / 2) / math.sqrt(30))
    outlier = row(stddev=0.01)
    outlier["stats"]["stddev"] *= 100
    [only] = run(outlier).rows
    assert figures.median_uncertainty(only) == pytest.approx(figures.median_uncertainty(calm))
    assert only.spread == pytest.approx(1.0)


def settings(tmp_path, text):
    (tmp_path / "flashinfer-perf.toml").write_text(f"[thresholds]\n{text}\n")
    return thresholds.read(project_file.find(tmp_path))


def of(found, **said):
    return found.of(next(iter(run(row(**said)).rows)))


def test_globs_fit_by_routine_family_test_and_backend_and_the_last_one_wins(tmp_path):
    found = settings(
        tmp_path,
        """
        "*" = { slower = "5%", floor_us = 0.5 }
        "attention/decode*" = { slower = "1.5 %" }
        "decode/*-fa3" = { min_tflops = 500, min_sol_pct = 40.5 }
        "*test_decode.py::*" = { min_sol_pct = 41 }
        "gemm/*" = { slower = "9%" }
        """,
    )
    asked = of(found)
    assert (asked.slower, asked.floor_us, asked.min_tflops, asked.min_sol_pct) == (0.015, 0.5, 500, 41)
    assert of(found, case="decode/b16-fa2").min_tflops is None
    assert found.idle(run(row()).rows) == ["gemm/*"]


def test_the_documents_example_is_read(tmp_path, pytestconfig):
    page = (pytestconfig.rootpath / "docs" / "gate.md").read_text()
    [example] = re.findall(r"^```toml\n\[thresholds\]\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(settings(tmp_path, example).entries) == 3


def test_without_a_file_there_are_defaults(tmp_path):
    asked = of(thresholds.read(project_file.find(tmp_path)))
    assert (asked.slower, asked.floor_us) == (0.02, 0.1)
    assert asked.in_log(100e-6) == pytest.approx(math.log(1.02))
    assert asked.in_log(1e-6) == pytest.approx(math.log(1.1))


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ('slowr = "2%"', r"unknown name 'slowr', did you mean slower\? known are slower, floor_us"),
        ('zzz = "2%"', "unknown name 'zzz', known are"),
        ("slower = 2", 'slower: must be a percentage above zero, as in "2%", got 2'),
        ('slower = "0%"', "must be a percentage above zero"),
        ('slower = "-2%"', "must be a percentage above zero"),
        ("floor_us = -1", "floor_us: must be a number of at least 0, got -1"),
        ("floor_us = true", "must be a number"),
        ("min_tflops = inf", "must be a number"),
    ],
)
def test_what_the_file_says_wrongly_names_file_and_field(tmp_path, entry, sentence):
    with pytest.raises(ProjectFileError, match=sentence) as error:
        settings(tmp_path, f'"decode*" = {{ {entry} }}')
    assert f"{tmp_path / 'flashinfer-perf.toml'}: [thresholds] 'decode*'" in str(error.value)
