"""Whatever a file holds, reading it gives a result or one sentence: no traceback, and no verdict by mistake.

What once went wrong is kept below `strange/`.
"""

import contextlib
import io
import json
import random
import re
from pathlib import Path

import pytest
from declared import here
from made import document, row
from mutations import as_text, few_and, put, said_of, texts

from pytest_flashinfer_perf import cli, loading
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.gate import verdict
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFileError

STRANGE = Path(__file__).with_name("strange")
# A row with something of everything.
ROW = """
{"sm_ghz": 1.7, "kernels": ["k"], "tflops": 3.0, "tb_per_sec": 1.0, "sol_pct": 50.0, "bytes": 1e6, "peaks": "measured",
 "flops": 1e9, "refcheck": "passed", "case_s": 1.0, "notes": ["n"], "busy_s": 1e-4, "span_s": 1.1e-4, "spread": 0.001,
 "shape": "b16", "power_w": 1.0, "host": {"host_us": 5.0, "rounds_us": [5.0, 5.5], "waits": false, "allocations": 3,
 "references_us": [20.0, 21.0], "plan_us": 7.0, "plans_us": [7.0], "plan_references_us": [20.0],
 "lines": [{"what": "copy to host", "line": "a.py:1", "count": 2}]}}
"""
ROOF = {"bytes_per_s": 4e12, "flops_per_s": {"bfloat16": 8e14}, "source": "x"}
MACHINE = {"node": "n", "driver": "580", "flashinfer": "0.7.2", "torch": "2.11", "gpu": "H", "cpu": {"brand_raw": "c"}}
PARAMS = {"m": 1, "batch_size": 16, "s_kv": 8, "sizes": [1, 2]}


def rows(us):
    made = [
        row(f"decode/b16-{name}", us=us, **{**json.loads(ROW), "cycles": us * 1e3, "backend": name})
        for name in ("fa2", "fa3")
    ]
    for one in made:
        one["params"] = {**PARAMS, "backend": one["extra_info"]["backend"]}
        one["stats"]["data"] = [us * 1e-6] * 5
    return made


def run(us=100.0, nth=1):
    left = {"case": "c", "outcome": "skipped", "reason": "r", "test": "t.py::c", "device": "cuda:0"}
    made = document(*rows(us), unmeasured=[left], commit="0123456789abcdef", machine={**MACHINE})
    kernels = [{"name": "qkv", "count": 2, "problems": [PARAMS], "weight_bytes": 8.0}]
    tests = [[at, one["fullname"]] for at, one in enumerate(made["benchmarks"])]
    made["flashinfer_perf"] |= {
        "roofs": {"GPU-0": {"measured": ROOF}},
        "step": {"name": "m", "title": "m, a step", "kernels": kernels, "coverage": ["all"]},
        "shard": {"nth": nth, "of": 2, "whole": "w", "tests": tests, "count": 4, "size": 2},
    }
    return made


COMMANDS = here(
    [
        "compare --base base.json --head strange.json",
        "compare --base strange.json --head base.json --json v.json --markdown v.md",
        "compare --base strange.json base.json --head other.json again.json --paired",
        "report --markdown strange.json base.json",
        "merge strange.json other.json -o merged.json",
        "watch runs --markdown changes.md",
        "compare --base base.json --head other.json --perf-config=strange.json",
    ]
)
PLACES = {
    "watch runs --markdown changes.md": "runs/strange.json",
}
SENTENCE = re.compile(r"flashinfer-perf (merge: .+\n(.+\n)*|\w+: .+\n)")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, us, nth in (("base", 100.0, 1), ("other", 101.0, 2), ("again", 102.0, 1)):
        Path(f"{name}.json").write_text(json.dumps(run(us, nth)))
    Path("runs").mkdir()
    for nth in range(6):
        Path("runs", f"{nth}.json").write_text(json.dumps({**run(100 + nth), "datetime": f"2026-11-1{nth}T00:00:00"}))
    return tmp_path


def read_by_a_command(line):
    """The exit code of a command that reads the strange file."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(line.split())
    said = err.getvalue()
    assert "Traceback" not in said, said
    assert code in (0, 1, 2)
    assert not said or (code == 2 and SENTENCE.fullmatch(said)), said
    assert said or out.getvalue()
    return code


@pytest.mark.skipif(not here(["compare"]), reason="no command of the core judges a stored run")
@few_and(5000, 140)
def test_a_run_is_judged_or_refused(folder, count):
    rand, seen = random.Random(1), set()
    for nth, text in enumerate(texts(rand, run(150.0), count)):
        line = COMMANDS[nth % len(COMMANDS)]
        put(folder / PLACES.get(line, "strange.json"), text)
        seen.add((line.split()[0], read_by_a_command(line)))
    assert {code for _, code in seen} == {0, 1, 2}
    assert len(seen) > len({name for name, _ in seen})


KEPT = sorted(path.name for path in STRANGE.iterdir())


@pytest.mark.parametrize("name", KEPT)
def test_what_once_went_wrong_goes_well(folder, name):
    for line in COMMANDS:
        (folder / PLACES.get(line, "strange.json")).write_bytes((STRANGE / name).read_bytes())
        read_by_a_command(line)
    for read, *_ in READERS.values():
        with contextlib.suppress(FlashinferPerfError):
            read(folder / "strange.json")


@pytest.mark.parametrize(
    "text", ["tool = 5", "[tool]\nflashinfer-perf = 5", "[[tool.flashinfer-perf]]\nthresholds = 5"]
)
def test_a_project_whose_tables_are_none_is_refused(tmp_path, text):
    path = put(tmp_path / "pyproject.toml", text)
    with pytest.raises(ProjectFileError, match=f"^{path}: [a-z-]+ must be a table, got "):
        project_file.find(tmp_path)


SETTINGS = """
[thresholds]
"attention/decode*" = { slower = "2%", floor_us = 0.5, min_tflops = 3 }
"gemm/*" = { min_sol_pct = 1.5 }
[tolerances]
"decode/fa2" = { rtol = 0.1, atol = 1, output = 1, reason = "x" }
[quarantine]
"decode/*" = { reason = "hangs", link = "https://example.org/1" }
"""


def read_settings(path):
    project = project_file.read(path)
    verdict.read_rules(project, loading.manager().hook)
    project_file.read_tolerances(project)
    project_file.read_quarantine(project)


READERS = {
    "settings": (read_settings, as_text, SETTINGS),
}


@few_and(2500, 120)
@pytest.mark.parametrize("kind", READERS)
def test_a_file_is_read_or_refused_with_a_sentence_that_names_it(tmp_path, kind, count):
    assert len(said_of(tmp_path / "strange", *READERS[kind], count)) > 10
