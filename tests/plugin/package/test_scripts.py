"""Each script beside the package is started, without a GPU: what it does after the GPU, or before it."""

import json
import os
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

import gate_acceptance
import planted_on_host
import pytest
import torch
from recorded_traffic import product, written
from reports import benchmark, document, write
from step_runs import TIMES, recorded

from pytest_flashinfer_perf.models import plan as plans
from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.derived import all_apis
from pytest_flashinfer_perf.spec.presets import Spread

ROOT = Path(__file__).parents[3]
FOLDERS = ("benchmarks", "tests/acceptance", "tools")
SCRIPTS = {path.name: path for folder in FOLDERS for path in (ROOT / folder).glob("*.py")}
RUN = ROOT / "evidence" / "h200-run.json"
QUICK = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--perf-device=cpu", "--perf-iters=1")


@pytest.fixture(autouse=True)
def _variables_that_scripts_set_are_theirs():
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def started(monkeypatch, capsys):
    """Runs a script, as Python does that is given its path, and returns what it prints.

    In this process: another one would import torch and FlashInfer again, which takes longer than most scripts.
    """

    def started(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(word) for word in (SCRIPTS[name], *arguments)])
        capsys.readouterr()
        try:
            runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        return capsys.readouterr().out

    return started


def started_alone(name, *arguments):
    """What a script prints that has to be a process of its own: it forks, or measures what its Python has."""
    words = [str(word) for word in (sys.executable, SCRIPTS[name], *arguments)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def measured(pytester, monkeypatch):
    """The rows of a script that pytest runs."""

    def measured(name, *arguments, **variables):
        monkeypatch.chdir(ROOT)
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        written = pytester.path / "run.json"
        done = pytester.runpytest_inprocess(SCRIPTS[name], *QUICK, f"--benchmark-json={written}", *arguments)
        assert done.ret == 0
        return json.loads(written.read_text())["benchmarks"]

    return measured


# In the place of FlashInfer: what the museum calls, by torch.
CALLED = """
import sys, torch
__version__ = "0.0"
for module in ("norm", "sampling", "page", "gdn_prefill"):
    sys.modules[f"flashinfer.{module}"] = sys.modules[__name__]
def rmsnorm(x, weight, eps=1e-6, out=None):
    return out.copy_(torch.nn.functional.rms_norm(x, weight.shape, weight, eps))
def top_k(scores, k, sorted=False, tie_break=0):
    return tuple(scores.topk(k))
def top_k_top_p_sampling_from_logits(logits, k, p, seed, offset):
    return logits.argmax(-1)
def append_paged_mla_kv_cache(ckv, kpe, which, at, ckvs, kpes, pages, starts, last):
    page = pages[starts[which] + at // ckvs.shape[1]]
    ckvs[page, at % ckvs.shape[1]], kpes[page, at % ckvs.shape[1]] = ckv, kpe
class BatchPrefillWithRaggedKVCacheWrapper:
    def __init__(self, workspace, backend):
        pass
    def plan(self, *lengths, **how):
        pass
    def run(self, query, key, value, *scales):
        return query.bfloat16()
def chunk_gated_delta_rule(query, key, value, decay, beta, cu_seqlens):
    return (value * (decay * beta).unsqueeze(-1)).to(value.dtype)
"""


def test_the_museums_calls_are_right_of_functions_that_are(tmp_path):
    (tmp_path / "flashinfer.py").write_text(CALLED)
    smallest = "16-4096 or rmsnorm[96] or sampling[1] or ties[64] or alike or [4096] or [512] or window"
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "pytest", SCRIPTS["museum_calls.py"], *QUICK, "-k", smallest]
    written = tmp_path / "run.json"
    words.append(f"--benchmark-json={written}")
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(written.read_text())["benchmarks"]
    answers = {row["name"]: row["extra_info"]["refcheck"] for row in rows}
    not_compared = {"test_sampling[1]", "test_top_k_ties[64]", "test_gdn[512]", "test_window_of_fp8[1024]"}
    right = {"test_rmsnorm[16-4096]", "test_last_rows_of_rmsnorm[96]", "test_top_k_of_alike_scores"}
    right.add("test_append_mla[4096]")
    assert answers == {**dict.fromkeys(not_compared, "not checked"), **dict.fromkeys(right, "passed")}


def test_every_script_is_started_by_a_test():
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    used = {*re.findall(r"^import (\w+)|^from (\w+) import", tests, re.MULTILINE)}
    names = {name for pair in used for name in pair} | {*re.findall(r'"(\w+)\.py"', tests), "one_by_one"}
    hooks = re.findall(
        r'^path = "tools/(\w+)\.py"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )  # of each build
    assert {path.stem for path in SCRIPTS.values()} <= {*names, *hooks}
    assert '"-p", "one_by_one"' in tests


def test_the_smallest_cases_of_all_apis(started, tmp_path):
    pytest.importorskip("flashinfer", exc_type=ImportError)
    started("api_evidence.py", "lines", tmp_path / "lines", "2", "1", "1")
    lines = [line for path in (tmp_path / "lines").iterdir() for line in path.read_text().splitlines()]
    assert {line.split()[1] for line in lines if line} >= {"flashinfer.norm.rmsnorm"}
    empty = write(tmp_path / "run.json", document())
    line, faults = tmp_path / "line.txt", tmp_path / "faults.json"
    line.write_text("--api flashinfer.norm.rmsnorm --backends torch --batch_size 4 --hidden_size 64")
    faults.write_text(started("api_evidence.py", "faults", line))
    assert json.loads(faults.read_text()) == {"flashinfer.norm.rmsnorm/bs4-h64-torch": []}
    assert "0 APIs right and timed" in started("api_evidence.py", "table", faults, empty)


def test_a_history_of_triton_kernels(started, tmp_path):
    assert "commit 6 of 10" in started("bisect_triton.py", tmp_path / "repo")


def test_what_other_tools_would_read():
    assert re.search(r"run\.csv: \d\d+ lines", started_alone("consumers.py", "--dry-run"))


def test_a_program_beside_busy_neighbours(tmp_path):
    quickly = ("--kinds", "sleeping", "--loads", "1", "--runs", "1", "--processes", "1", "--patience", "0")
    said = started_alone("busy_cpu.py", tmp_path, *quickly)
    assert "| sleeping | 1 | identical | 0 of 1 | " in said
    assert "| sleeping | 1 | +100 % | " in said
    assert "planted: " in said


def test_a_newcomers_steps_in_this_environment():
    said = started_alone("empty_environment.py", "--here")
    assert "run the shipped suite, without a checkout" in said
    assert "make Markdown of it" in said


def test_cases_that_end_well(measured):
    [row] = measured("endings.py", "-k", "0", ENDINGS="none")
    assert row["extra_info"]["flops"] == 2 * (2048 if torch.cuda.is_available() else 64) ** 3


def test_kernels_of_ones_own_and_longer_ones(measured):
    smallest = ("-k", "65536 or 256 and matmul")
    rows = measured("noise_kernels.py", *smallest)
    assert len(rows) == 3
    grown = measured("noise_kernels.py", *smallest, LONGER="1.5")
    assert [row["extra_info"]["bytes"] for row in grown] == pytest.approx([r["extra_info"]["bytes"] for r in rows])


def test_a_recording_beside_what_was_called(started, tmp_path):
    recording, said = written(tmp_path / "loop.jsonl", [product(4, count=5)]), tmp_path / "said.json"
    said.write_text('{"made": {"mm_bf16": 5}}')
    assert started("recorded_loop.py", said, "--compare", recording) == "all counts are exact\n"
    said.write_text('{"made": {"mm_bf16": 6}}')
    with pytest.raises(SystemExit, match="True"):
        started("recorded_loop.py", said, "--compare", recording)


def test_calls_of_two_processes(started, measured, pytester):
    measured("ranks_kernels.py", "-k", "well")
    _, _, line = started("ranks_table.py", pytester.path / "run.json").splitlines()
    assert line.startswith("| test_ends[well] | ")


def test_calls_of_many_kernels_and_longer_ones(measured):
    chosen = ("-k", "eager and (swiglu or ten_small)")
    rows, grown = (measured("noise_sequences.py", *chosen, LONGER=longer) for longer in ("1", "1.5"))
    assert [len(rows), len(grown)] == [2, 2]


def test_what_calls_cost_the_host(started):
    assert started("host_table.py", RUN).startswith("| routine | backend | cases | enqueue |")


def test_host_faults_are_planted_where_the_suite_finds_its_calls():
    assert all(callable(getattr(holder, name)) for holder, name in planted_on_host.calls())
    seen = []
    slowed = planted_on_host.behind(lambda x, y=1: seen.append((x, y)) or "answer", lambda: seen.append("fault"))
    assert slowed(3) == "answer"
    assert seen == [(3, 1), "fault"]


KERNELS = gate_acceptance.H200[:3]
CASES = [kernel.name for kernel in KERNELS]


@pytest.fixture
def processes(tmp_path):
    """Two files of the same code, and two in which the first case takes 30 % longer."""
    rng = random.Random(3)
    for folder, slower in (("plain", 0.0), ("longer", 0.3)):
        for nth in range(2):
            rows = [gate_acceptance.row(k, rng, slower=slower * (k.name == CASES[0])) for k in KERNELS]
            (tmp_path / folder).mkdir(exist_ok=True)
            write(tmp_path / folder / f"{nth}.json", document(*rows))
    return tmp_path


def test_runs_of_the_same_code_beside_each_other(started, processes):
    said = started("noise_evidence.py", processes / "plain")
    assert said.startswith("plain: 0 of 2 pairs exit 1; of 6 verdicts ")
    assert said.count("| decode-") == 3
    in_head, found, in_base = started(
        "noise_evidence.py", "--against", processes / "plain", processes / "longer"
    ).splitlines()
    assert (in_head.split(";")[0], found) == ("longer in head: 4 of 4 pairs exit 1", f"SLOWER 4 times: {CASES[0]}")
    assert in_base.startswith("longer in the baseline: 0 of 4 pairs exit 1; ")


def test_one_run_beside_another(started, tmp_path):
    known = {"gpu_uuid": "GPU-0", "case_s": 1.0}
    one, many = (
        write(tmp_path / f"{us}.json", document(*(benchmark(us=us, case=case, **known) for case in CASES)))
        for us in (100.0, 101.0)
    )
    assert "medians within 2%: 1 of 1" in started("many_evidence.py", one, many)


def test_longer_cases_are_found_under_their_old_names(started, processes):
    lines = processes / "lines.txt"
    lines.write_text("# a comment\n--routine mm_bf16 --m 8 --n 16 --k 4096\n--routine softmax --batch_size 2\n")
    assert started("longer_cases.py", lines) == "--routine mm_bf16 --m 8 --n 16 --k 4224\n"
    grown = write(processes / "grown.json", document(benchmark(case="mm_bf16/m8-n16-k4224-torch")))
    started("longer_cases.py", "--rename", lines, grown)
    assert json.loads(grown.read_text())["benchmarks"][0]["extra_info"]["case"] == "mm_bf16/m8-n16-k4096-torch"
    found = started("longer_cases.py", "--found", processes / "plain", processes / "longer").splitlines()
    assert found[2:] == ["| 2.85 % or more | 20 us | 4 | 4 |", "| 4.8 % or more | 5 us | 4 | 4 |"]


@pytest.mark.parametrize(("gpus", "parted"), [(1, False), (2, True)])
def test_the_backends_of_a_real_step(started, tmp_path, gpus, parted):
    pytest.importorskip("flashinfer", exc_type=ImportError)
    known = {**all_routines(), **all_apis()}
    step = Step(batch=64, context=8192, spread=Spread(tp=gpus))
    plan = plans.completed(plans.of("llama-3.1-8b", step), known)
    run = write(tmp_path / "run.json", recorded(plan, {**TIMES, "all-reduce": 15.0}))
    asked = ("--batch", "64", "--context", "8192", "--tp", str(gpus))
    said = started("real_decode_step.py", run, "--dry-run", *asked).splitlines()
    assert "attention: fa2" in said
    assert ("all-reduce: fa2" in said) == parted
