"""The sum of a model's step in the file of its run, in reports, and in the gate."""

import json

import pytest
from reports import write
from step_runs import PRODUCTS, TIMES, TINY, recorded

from pytest_flashinfer_perf.extensions.models import budget
from pytest_flashinfer_perf.extensions.models.step import StepKernel, plan_of
from pytest_flashinfer_perf.extensions.reports import story
from pytest_flashinfer_perf.extensions.shards import merging
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.fields import FieldError


def test_kernels_of_a_step_are_summed():
    kernel = StepKernel(name="gemm", count=2, weight_bytes=8.0)
    assert kernel.times(3) == StepKernel(name="gemm", count=6, weight_bytes=24.0)
    assert kernel.joined(kernel) == kernel.times(2)
    with pytest.raises(FieldError, match="gemm: count must be at least 1, got 0"):
        StepKernel(name="gemm", count=0)


def longer(share):
    return {name: us * (1 + share) for name, us in TIMES.items()}


@pytest.fixture
def compared(plan, tmp_path, monkeypatch, command):
    """Exit code and output of `compare`, of two runs and a settings file."""
    monkeypatch.chdir(tmp_path)

    def compare(head, settings="", *words, base=TIMES, **how):
        (tmp_path / "flashinfer-perf.toml").write_text(settings)
        sides = (("base.json", base), ("head.json", head))
        files = [write(tmp_path / name, recorded(plan, us, **how)) for name, us in sides]
        code, text = command("compare", "--base", files[0], "--head", files[1], *words)
        return code, " ".join(text.split())

    return compare


def test_a_run_of_a_step_records_it(session, pytestconfig, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "num_hidden_layers": 2}))
    words = (
        "--import-mode=importlib",
        "--perf-backends=torch",
        "-k",
        "mm_bf16",
        f"--perf-model={tmp_path}/config.json",
    )
    done = session(pytestconfig.rootpath / "tests" / "gemm", *words, "--perf-step=--batch 4 --context 128")
    assert done.code == 0
    step = plan_of(run_file.read(done.folder / "run.json"))
    assert step.title.endswith("one decode step of 4 requests with 128 tokens")
    assert {kernel.name: kernel.count for kernel in step.kernels}["gate-up"] == 2
    assert next(kernel for kernel in step.kernels if kernel.name == "qkv").problems[0]["routine"] == "mm_bf16"


def test_a_recorded_step_is_read_and_merged_as_it_was(plan, tmp_path):
    run = recorded(plan, TIMES)
    run["flashinfer_perf"]["shard"] = {"nth": 1, "of": 1, "whole": "w", "tests": []}
    path = write(tmp_path / "run.json", run)
    assert plan_of(run_file.read(path)) == plan
    whole = merging.merged([merging.read(path)])
    assert plan_of(run_file.parse(whole, "merged")) == plan


def test_a_step_recorded_by_an_older_version_is_still_summed(plan, tmp_path, command):
    """Without what came later, and with what is no more."""
    run = recorded(plan, TIMES)
    for kernel in run["flashinfer_perf"]["step"]["kernels"]:
        del kernel["weight_bytes"], kernel["cases"]
        kernel["flops"] = 1.0
    code, text = command("report", "--markdown", write(tmp_path / "run.json", run))
    assert (code, "sum 320.0 us" in text) == (0, True)
    assert "incomplete: without embedding\n" in text
    assert "| gate-up | 3 | mm\\_bf16: fa2 | 30.00 us | 90.00 us | 28.1% |" in text


def test_a_report_has_the_share_of_each_kernel_and_names_the_gaps(plan, tmp_path):
    dates = ("2026-11-20T10:00:00+00:00", "2026-11-21T10:00:00+00:00")
    sides = zip(("base.json", "head.json"), (TIMES, {**TIMES, "lm-head": 24.0}), dates, strict=True)
    runs = story.read([write(tmp_path / name, recorded(plan, us, when)) for name, us, when in sides])
    [table] = budget.section(budget.of_runs(runs)).tables
    shares = {line[0]: float(line[-1].rstrip("%")) for line in table.lines}
    assert len(shares) == len(TIMES)
    assert shares["gate-up"] == 29.6
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)
    said = " ".join(table.below)
    assert "sum 304.0 us" in said
    assert "without a case: embedding" in said


def test_a_report_of_a_step_without_rows_has_the_reason(plan, tmp_path):
    [table] = budget.section(budget.of_runs(story.read([write(tmp_path / "run.json", recorded(plan, {}))]))).tables
    assert (*table.headings, *table.lines) == ()
    assert "has usable rows of no device: a step runs on one GPU" in table.below[0]


@pytest.mark.parametrize(
    ("share", "settings", "code", "sentence"),
    [
        (0.05, '"*" = { slower_step = "3%" }', 1, "WORSE step of tiny: "),
        (0.05, '"*" = { slower_step = "3%" }', 1, "a step is 5.00% slower, more than slower_step 3.00%"),
        (0.02, '"*" = { slower_step = "3%" }', 0, "+2.00% +- "),
        (0.05, '"*" = { slower_step = "30%" }\n"tiny" = { slower_step = "3%" }', 1, "more than slower_step 3.00%"),
        (0.05, '"other*" = { slower_step = "3%" }', 0, "[models] 'other*' fits no model of which this run has a step"),
        (0.0, '"tiny" = { max_step_us = 319 }', 1, "a step takes 320 us, more than max_step_us 319"),
        (0.0, '"tiny" = { max_step_us = 321 }', 0, "step of tiny: 320.0 us, without embedding; +0.00% +- "),
        (0.0, '"tiny" = { slower = "3%" }', 2, "[models] 'tiny': unknown name 'slower'"),
        (0.0, '"tiny" = { slower_step = 3 }', 2, "[models] 'tiny': slower_step: must be a percentage above zero"),
    ],
)
def test_the_sum_is_held_to_thresholds(compared, share, settings, code, sentence):
    """Each kernel alone may become 50 % slower here."""
    settings = f'[thresholds]\n"*" = {{ slower = "50%" }}\n[models]\n{settings}\n'
    found, text = compared(longer(share), settings)
    assert sentence in text
    assert found == code


def test_a_change_that_noise_may_be_is_not_worse(compared):
    """By the host's clock 2 % more are less than two processes of the same code may differ."""
    settings = '[thresholds]\n"*" = { slower = "50%" }\n[models]\n"*" = { slower_step = "1%" }\n'
    code, text = compared(longer(0.02), settings, instrument="wall", placements=[])
    assert (code, "WORSE" in text) == (0, False), text
    assert "+2.00% +- " in text


def test_what_cannot_be_summed_cannot_be_judged(compared):
    settings = '[models]\n"*" = { max_step_us = 1000, slower_step = "1%" }\n'
    code, text = compared(PRODUCTS, settings, base=PRODUCTS)
    assert code == 2
    unmeasured = "rope, append, activation, add-norm, first norm, sampling"
    assert f"INVALID step of tiny: 280.0 us, without embedding, {unmeasured}; " in text
    assert f"max_step_us of a step cannot be judged: no usable row of {unmeasured}" in text


def test_the_sum_is_in_every_form_of_the_verdicts(compared, tmp_path):
    settings = '[thresholds]\n"*" = { slower = "50%" }\n[models]\n"*" = { slower_step = "3%" }\n'
    forms = {name: tmp_path / f"verdicts.{name}" for name in ("markdown", "json")}
    compared(longer(0.05), settings, *(f"--{name}={path}" for name, path in forms.items()))
    texts = {name: path.read_text() for name, path in forms.items()}
    assert "WORSE step of tiny: 336.0 us" in texts["markdown"]
    [step] = json.loads(texts["json"])["steps"]
    assert (step["model"], len(step["worse"]), step["unknown"]) == ("tiny", 1, [])
