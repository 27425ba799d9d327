"""`--perf-csv`: rows with the columns of upstream's CSV, from any run."""

import csv
import io

import pandas as pd
import pytest
import upstream_parsers
from made import typed
from testlists import LINES

from pytest_flashinfer_perf.extensions.testlists import csv_rows


def _rows(folder):
    return list(csv.DictReader(io.StringIO((folder / "run.csv").read_text(), newline="")))


def test_a_csv_is_read_as_any_other_and_by_pandas_without_options(run):
    done = run(LINES, "lines.txt", "--perf-csv=run.csv")
    assert done.outcomes == {"passed": 3}
    rows = _rows(done.folder)
    assert list(rows[0])[:4] == ["routine", "median_time", "std_time", "tflops"]
    assert len(set(rows[0])) == len(rows[0])
    assert (rows[0]["refcheck_passed"], rows[0]["autotuned"], rows[0]["autotune_winner"]) == ("True", "False", "")
    medians = [1e3 * row["stats"]["median"] for row in done.document["benchmarks"]]
    assert [float(row["median_time"]) for row in rows] == pytest.approx(medians)
    assert [row["avg_actual_seq_len"] for row in rows] == ["", "", "8"]
    assert (rows[2]["case_tag"], rows[2]["s_kv"], rows[2]["n"]) == ("two words", "8", "")
    said = [rows[0][name] for name in ("k", "random_seed", "use_cupti", "refcheck", "repro_command")]
    assert said == ["16", "42", "False", "True", ""], "upstream has no backend torch"
    table = pd.read_csv(done.folder / "run.csv")
    assert table["median_time"].dtype.kind == "f"
    assert list(table["case_tag"])[2] == "two words"
    assert table["repro"].str.startswith("pytest '--perf-case=--routine").all()


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


def test_own_kernels_are_rows_of_the_csv_too(session):
    done = session("--perf-csv=run.csv", test_own="def test_own(perf): perf.time(abs, -1)")
    [row] = _rows(done.folder)
    assert (row["routine"], row["case"]) == ("", "test_own.py::test_own")
    assert float(row["median_time"]) > 0


def test_a_killed_run_keeps_its_rows(session, pytester):
    (pytester.path / "lines.txt").write_text(LINES)
    killed = "import os\ndef test_z(): os._exit(9)"
    session("--import-mode=importlib", "lines.txt", "test_z.py", "--perf-csv=run.csv", process=True, test_z=killed)
    assert len(_rows(pytester.path)) == 3
