"""Upstream's script beside this suite, all but the GPU: a script in its place writes what such a script would."""

import json
from pathlib import Path

import parity
import pytest
from testlists import DECODE, GEMM

# In place of upstream's, which needs a GPU: the columns of its CSV that are read, of each line's first backend.
SCRIPT = """
import shlex, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rows = ["routine,median_time,tflops,tb_per_sec,backend,case_tag,avg_actual_seq_len"]
for line in open(arguments["--testlist"]):
    words = shlex.split(line)
    said = {name: words[words.index(name) + 1] for name in ("--routine", "--backends", "--case_tag")}
    length = 8 if "Decode" in line else ""
    rows.append(f"{said['--routine']},0.01,0.5,0.25,{said['--backends']},{said['--case_tag']},{length}")
open(arguments["--output_path"], "w").write("\\n".join(rows))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "flashinfer_benchmark.py").write_text(SCRIPT)
    (tmp_path / "cases.txt").write_text(f"# two lines\n{GEMM} --num_iters 2\n{DECODE}\n")
    return tmp_path


def test_both_programs_run_in_turns_and_a_further_run_goes_on(folder, capsys):
    out = folder / "out"
    words = ["run", "--upstream", str(folder), "--output", str(out), "--cases", str(folder / "cases.txt")]
    on_cpu = ["--", "--perf-device=cpu", "--perf-iters=2"]
    assert parity.main([*words, "--turns", "1", *on_cpu]) == 0
    first = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert first == ["upstream-0.csv", "flush-0.json", "default-0.json"]
    assert parity.main([*words, "--turns", "2", "--seconds", "0", *on_cpu]) == 0
    assert capsys.readouterr().out == "default-1.json: no time is left, run again to go on\n"
    cold = [json.loads((out / f"{name}-0.json").read_text()) for name in ("flush", "default")]
    assert [row["extra_info"]["cold_l2"] for run in cold for row in run["benchmarks"]] == ["flush"] * 2 + ["rotate"] * 2
    assert parity.main(["table", str(out)]) == 1
    shown = capsys.readouterr().out
    assert "Medians of 1 processes." in shown
    assert "| bmm_fp8/m4-n16-k16-torch | 10.00 | " in shown
    assert shown.count("**no**") == 2
    assert "* bmm_fp8 bytes: upstream leaves out the batch, but for the output." in shown
    assert "* bmm_fp8 FLOPs: UNEXPLAINED." in shown


def seen(median, **more):
    return parity.Seen([median], **{"flops": 1e9, "bytes": 1e6, "length": "327", "name": "a/b-fa2", **more})


@pytest.mark.parametrize(
    ("ours", "fine", "cells"),
    [
        (seen(101.0), True, ["a/b-fa2", "100.00", "101.00", "+1.0 %", "yes", "99.00", "=", "=", "327"]),
        (seen(103.0), False, ["a/b-fa2", "100.00", "103.00", "+3.0 %", "**no**", "99.00", "=", "=", "327"]),
        (seen(100.0, length="501"), False, [*["a/b-fa2", "100.00", "100.00", "+0.0 %", "yes", "99.00", "=", "="],
                                            "**327, here 501**"]),
        (seen(100.0, bytes=2e6), True, ["a/b-fa2", "100.00", "100.00", "+0.0 %", "yes", "99.00", "=", "2", "327"]),
    ],
)  # fmt: skip
def test_a_case_is_compared_with_the_scripts(ours, fine, cells):
    assert parity.compared(seen(100.0), ours, seen(99.0))[::2] == (cells, fine)


def test_a_short_call_may_differ_by_a_tenth_of_a_microsecond():
    assert parity.compared(seen(2.0), seen(2.09), None)[2]
    assert not parity.compared(seen(2.0), seen(2.11), None)[2]


def test_an_apis_only_backend_is_matched_by_its_line():
    theirs = {("line-1", "cuda"): seen(1.0), ("line-2", "fa2"): seen(2.0), ("line-3", "fa2"): seen(3.0)}
    ours = {("line-1", "flashinfer"): seen(1.5), ("line-2", "fa2"): seen(2.5), ("line-2", "fa3"): seen(2.6)}
    assert {key: one.median for key, one in parity.matched(theirs, ours).items()} == {
        ("line-1", "cuda"): 1.5,
        ("line-2", "fa2"): 2.5,
    }


def test_the_lines_are_thirty_and_have_tags_of_their_own():
    lines = list(parity.tagged(parity.CASES))
    assert len(lines) >= 5 + 12
    assert len({line.rpartition(" ")[2] for line in lines}) == len(lines)
    assert all(Path(path).is_file() for path in parity.CASES)
