"""`--perf-csv`: rows with the columns of upstream's CSV, from any run."""

import csv
import io
import json

import pandas as pd
import pytest
import upstream_parsers
from made import typed
from testlists import LINES, OPTIONS, run

from pytest_flashinfer_perf.extensions.testlists import csv_rows


def test_pandas_reads_the_csv_without_options(pytester):
    run(pytester, LINES, "lines.txt", "--perf-csv=run.csv").assert_outcomes(passed=3)
    table = pd.read_csv(pytester.path / "run.csv")
    assert table["median_time"].dtype.kind == "f"
    assert list(table["case_tag"])[2] == "two words"
    assert table["repro"].str.startswith("pytest '--perf-case=--routine").all()


def _rows(path):
    return list(csv.DictReader(io.StringIO(path.read_text(), newline="")))


def test_a_csv_is_read_as_any_other(pytester):
    run(pytester, LINES, "lines.txt", "--perf-csv=run.csv", "--benchmark-json=run.json").assert_outcomes(passed=3)
    rows = _rows(pytester.path / "run.csv")
    made = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert list(rows[0])[:4] == ["routine", "median_time", "std_time", "tflops"]
    assert len(set(rows[0])) == len(rows[0])
    assert (rows[0]["refcheck_passed"], rows[0]["autotuned"], rows[0]["autotune_winner"]) == ("True", "False", "")
    assert [float(row["median_time"]) for row in rows] == pytest.approx([1e3 * b["stats"]["median"] for b in made])
    assert [row["avg_actual_seq_len"] for row in rows] == ["", "", "8"]
    assert (rows[2]["case_tag"], rows[2]["s_kv"], rows[2]["n"]) == ("two words", "8", "")
    assert (rows[0]["k"], rows[0]["random_seed"], rows[0]["use_cupti"], rows[0]["refcheck"]) == (
        "16",
        "42",
        "False",
        "True",
    )
    assert rows[0]["repro_command"] == ""  # upstream has no backend torch


@pytest.mark.parametrize("columns", upstream_parsers.COLUMNS.values(), ids=upstream_parsers.COLUMNS)
def test_the_csv_has_the_columns_of_upstream_in_its_order(columns):
    once = list(dict.fromkeys(columns.split()))
    assert [name for name in csv_rows.COLUMNS if name in once] == once


def test_a_tuned_row_names_its_tactic_as_upstream_does():
    tuned = {"autotuned": True, "tactic": "CutlassFp8Runner (64, 128)"}
    row = typed(**tuned, refcheck="wrong", allow_output_mismatch=True)
    said = csv_rows.columns(row)
    assert (said["autotune_winner"], said["autotune_tactic"]) == ("CutlassFp8Runner", "(64, 128)")
    assert (said["refcheck"], said["refcheck_passed"], said["tactic"]) == (True, False, "CutlassFp8Runner (64, 128)")


def test_own_kernels_are_rows_of_the_csv_too(pytester):
    pytester.makepyfile("import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8), flops=8)")
    pytester.runpytest(*OPTIONS, "--perf-csv=run.csv").assert_outcomes(passed=1)
    [row] = _rows(pytester.path / "run.csv")
    assert (row["routine"], row["case"]) == ("", "test_own_kernels_are_rows_of_the_csv_too.py::test_own")
    assert float(row["median_time"]) > 0


def test_a_csv_that_cannot_be_written_is_an_error_of_use(pytester):
    pytester.makepyfile("def test_a(): pass")
    done = pytester.runpytest("--perf-csv=.")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: *Is a directory*"])


def test_a_killed_run_keeps_its_rows(pytester):
    pytester.makepyfile("""
        import os

        def test_z():
            os._exit(9)
    """)
    (pytester.path / "lines.txt").write_text(LINES)
    pytester.runpytest_subprocess(*OPTIONS, "lines.txt", "test_a_killed_run_keeps_its_rows.py", "--perf-csv=run.csv")
    assert len(_rows(pytester.path / "run.csv")) == 3
