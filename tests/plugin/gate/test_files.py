"""What the gate reads: results, and the settings file's thresholds."""

import math
import re
from datetime import datetime, timezone

import pytest
from made import plain, row, run, saved

from pytest_flashinfer_perf.gate import figures, thresholds
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import RunError
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFileError


def test_files_and_folders_of_them_are_read_in_their_order(tmp_path):
    one = saved(tmp_path / "one.json", row())
    saved(tmp_path / "more" / "b.json", row(us=101.0))
    saved(tmp_path / "more" / "deeper" / "a.json", row(us=102.0))
    (tmp_path / "more" / "verdicts.json").write_text('{"flashinfer_perf_gate": 1}')
    read = run_file.read_all([one, tmp_path / "more"])
    assert [run.source.rpartition("/")[2] for run in read] == ["one.json", "b.json", "a.json"]
    assert read[0].when == datetime(2026, 11, 20, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize("name", ["main", "0002_main", "0002"])
def test_a_stored_name_is_its_latest(tmp_path, name):
    for number in ("0001_main", "0002_main", "0003_other", "0004_mainly"):
        saved(tmp_path / "Linux" / f"{number}.json", row())
    [read] = run_file.read_all([name], storage=tmp_path)
    assert read.source.endswith("0002_main.json")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read as JSON"),
        ("", "is empty: pytest-benchmark writes nothing where no benchmark was run"),
        ("[1]", "it has no benchmarks"),
        ('{"benchmarks": [{"name": "x"}]}', "benchmark 0 lacks fullname"),
        ('{"benchmarks": 3}', "it has no benchmarks"),
        ('{"benchmarks": [], "datetime": "yesterday"}', "datetime: Invalid isoformat string: 'yesterday'"),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path, text, sentence):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(RunError, match=sentence) as error:
        run_file.read_all([path])
    assert str(path) in str(error.value)


def test_nothing_to_read_is_an_error(tmp_path):
    for names, sentence in (
        ([], "no files"),
        ([tmp_path], "in this folder"),
        (["a/b"], "no such file"),
        (["x"], "name"),
    ):
        with pytest.raises(RunError, match=sentence):
            run_file.read_all(names, storage=tmp_path / "none")


NOON, LATER = "2026-11-20T12:00:00+00:00", "2026-11-20T12:00:01+00:00"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"when": NOON, "commit": "abc"}, True),
        ({"when": LATER}, False),
        ({"when": LATER, "case_s": 0.3210987}, True),
        ({"when": LATER, "case_s": 0.4210987}, False),
        ({"when": NOON, "us": 100.1}, False),
    ],
)
def test_one_run_in_two_files_is_one_process(tmp_path, other, same):
    """Of a run that was both saved and written the files differ in their dates, and agree in what each case took."""
    info = {"case_s": 0.3210987} if "case_s" in other else {}
    of_file = {name: value for name, value in other.items() if name in ("when", "commit")}
    of_row = {name: value for name, value in other.items() if name not in of_file}
    saved(tmp_path / "a.json", row(**info), when=NOON)
    saved(tmp_path / "b.json", row(**of_row), **of_file)
    if not same:
        assert len(run_file.read_all([tmp_path])) == 2
        return
    with pytest.raises(RunError, match=r"b\.json is the same run as .*a\.json: a process counts once, leave one out"):
        run_file.read_all([tmp_path])


def test_old_and_plain_files_are_read():
    """Without an offset, a commit, or our key."""
    bare = {"benchmarks": [plain()], "machine_info": {"cpu": {"brand_raw": "Xeon"}}, "datetime": "2020-01-02T03:04:05"}
    read = run_file.parse(bare, "old")
    [only] = read.rows
    assert (only.case, only.provenance.instrument) == ("t.py::test_plain", "wall")
    assert (read.model(only), read.commit.id) == ("Xeon", None)
    assert read.when.tzinfo is timezone.utc
    assert run_file.parse({"benchmarks": []}, "bare").when.year == 1970


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
