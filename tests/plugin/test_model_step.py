"""A model's step as cases of a run, and as a budget of their times."""

import json

import pytest
from reports import document, write
from step_runs import FLAGS, PRODUCTS, STEP, TIMES, TINY, rows, run_of

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.apis import all_apis
from pytest_flashinfer_perf.models import kernels, shipped
from pytest_flashinfer_perf.models.elementwise import ADD_AND_NORM, NORM, SAMPLING
from pytest_flashinfer_perf.models.step import Step
from pytest_flashinfer_perf.routines import model_step
from pytest_flashinfer_perf.spec.presets import Spread


@pytest.fixture
def tiny(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def collected(pytester, pytestconfig, *arguments):
    tests = [str(pytestconfig.rootpath / "tests" / family) for family in ("attention", "gemm")]
    words = ("--collect-only", "-q", "--import-mode=importlib", "--perf-backends=torch")
    result = pytester.runpytest(*tests, *words, *arguments)
    return result, [line.rpartition("::")[2] for line in result.outlines if "::" in line]


def test_a_config_gives_cases_and_names_what_has_none(pytester, pytestconfig, tiny):
    step = "--perf-step=--batch 4 --context 128 --page-size 16"
    result, ids = collected(pytester, pytestconfig, f"--perf-model={tiny}/config.json", "--perf-tp=2", step)
    assert ids == [
        "test_decode[tiny-tp2-b4-s128-h2-kv1-d64-torch]",
        *(f"test_mm_bf16[tiny-tp2-m4-n{n}-k{k}-torch]" for n, k in ((256, 256), (256, 128), (512, 256), (320, 256))),
    ]
    result.stdout.fnmatch_lines(
        [
            "tiny-tp2: * of the weights and 100.0% of the operations have a case",
            "*without a case: embedding (*% of the weights, 0.00% of the operations): no routine measures the lookup",
            "*without a case: all-reduce (0.00% of the weights, 0.00% of the operations): cases run on one GPU",
        ]
    )


def test_a_shipped_model_has_the_cases_of_a_step_where_one_is_given(pytester, pytestconfig):
    _, ids = collected(pytester, pytestconfig, "--perf-model=llama-3.1-8b-tp8", "--perf-step=--phase prefill --batch 1")
    assert "test_paged_prefill[llama-3.1-8b-tp8-b1-q8192-s8192-h4-causal-kv1-d128-p64-torch]" in ids
    assert "test_mm_bf16[llama-3.1-8b-tp8-m8192-n768-k4096-torch]" in ids
    assert not any(name.startswith("test_decode") for name in ids)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--perf-step=--batch 4"], "--perf-step needs --perf-model"),
        (["--perf-model=llama-3.1-8b", "--perf-step=--batch none"], "--perf-step: argument --batch: must be a whole"),
        (["--perf-model=llama-3.1-8b", "--perf-step=--batch '4"], '--perf-step="--batch \'4": No closing quotation'),
        (["--perf-model=gemma-3-12b", "--perf-step=--batch 4"], "unknown name 'gemma-3-12b', did you mean"),
        (["--perf-model=nope/config.json"], "nope/config.json could not be read: "),
        (["--perf-model=llama-3.1-8b", "--perf-tp=5", "--perf-step=--batch 4"], "32 query heads, which 5 GPUs cannot"),
    ],
)
def test_a_step_that_cannot_be_is_one_clear_error(pytester, pytestconfig, arguments, sentence):
    result, ids = collected(pytester, pytestconfig, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()
    assert not ids


@pytest.mark.parametrize("spread", [Spread(), Spread(8), Spread(1, 8, 8)])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_every_kernel_of_every_shipped_model_has_a_valid_problem_or_a_reason(spread, phase):
    for name in shipped.names():
        try:
            plan = model_step.plan(name, Step(phase=phase, spread=spread), all_apis())
        except kernels.ConfigError as error:
            assert "GPUs cannot share evenly" in str(error)  # noqa: PT017 - of some models, not of all
            continue
        for one in plan.planned:
            assert bool(one.problems) != bool(one.kernel.gap), one


@pytest.fixture
def plan(tiny):
    return model_step.plan(str(tiny), STEP, all_apis())


def shown(capsys, *words):
    code = cli.main(["model", *map(str, words)])
    return code, capsys.readouterr().out


def test_the_sum_is_each_count_times_its_median(tmp_path, tiny, plan, capsys):
    """By hand: 3 layers of 10 + 20 + 5 + 30 + 15 us and, between, 1 + 1 + 2 + 2 x 3 us; 40 + 3 + 7 us once."""
    run = run_of(tmp_path / "run.json", TIMES, plan)
    code, text = shown(capsys, tiny, *FLAGS, "--run", run)
    assert code == 0
    assert "sum 320.0 us +- " in text
    assert "of GPU time per step, incomplete: of kernels with 92.2% of the weights\n" in text
    [gate_up] = [line.split() for line in text.splitlines() if line.startswith("gate-up")]
    assert gate_up == ["gate-up", "3", "mm_bf16:", "fa2", "30.00", "us", "90.00", "us", "28.1%"]


def test_the_fastest_backend_of_a_kernel_counts(tmp_path, tiny, plan, capsys):
    both = [*rows(plan, TIMES), *rows(plan, {"attention": 8.0})]
    code, text = shown(capsys, tiny, *FLAGS, "--run", write(tmp_path / "run.json", document(*both)))
    assert code == 0
    assert "sum 284.0 us" in text


def test_the_change_from_a_base_has_its_uncertainty(tmp_path, tiny, plan, capsys):
    base = run_of(tmp_path / "base.json", TIMES, plan)
    head = run_of(tmp_path / "head.json", {**TIMES, "lm-head": 24.0}, plan)
    _, text = shown(capsys, tiny, *FLAGS, "--run", head, "--base", base)
    assert "compared with the base: -5.0% +- 0.1% of GPU time per step" in text
    _, table = shown(capsys, tiny, *FLAGS, "--run", head, "--base", base, "--markdown")
    assert "| gate-up | 3 | mm\\_bf16: fa2 | 30.00 us | 90.00 us | 29.6% |" in table


def test_a_kernel_that_only_one_run_has_is_named_and_not_compared(tmp_path, tiny, plan, capsys):
    base = run_of(tmp_path / "base.json", {name: us for name, us in TIMES.items() if name != "lm-head"}, plan)
    head = run_of(tmp_path / "head.json", TIMES, plan)
    _, text = shown(capsys, tiny, *FLAGS, "--run", head, "--base", base)
    assert "compared with the base: +0.0% +- 0.1% of GPU time per step, without lm-head, which only one run has" in text


def test_a_run_without_a_kernel_is_incomplete(tmp_path, tiny, plan, capsys):
    run = run_of(tmp_path / "run.json", {name: us for name, us in TIMES.items() if name != "o"}, plan)
    code, text = shown(capsys, tiny, *FLAGS, "--run", run)
    assert code == 2
    assert "without a row in the run, though a case measures it: o, 9.4% of the weights\n" in text


def test_wrong_rows_and_rows_of_two_gpus_do_not_count(tmp_path, tiny, plan, capsys):
    wrong = [{**row, "extra_info": {**row["extra_info"], "status": "wrong"}} for row in rows(plan, TIMES)]
    other = [{**row, "extra_info": {**row["extra_info"], "device_name": "NVIDIA H100"}} for row in rows(plan, TIMES)]
    for listed, sentence in ((wrong, "of no device"), ([*rows(plan, TIMES), *other], "of NVIDIA H100 and NVIDIA H200")):
        path = write(tmp_path / "run.json", document(*listed))
        assert cli.main(["model", str(tiny), *FLAGS, "--run", str(path)]) == 2
        assert f"has usable rows {sentence}: a step runs on one GPU" in capsys.readouterr().err


def test_a_step_is_measured_where_no_run_is_given(tiny, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pytest_words = ("--perf-backends=torch", "--perf-iters=3", "--perf-device=cpu")
    code, text = shown(capsys, tiny, *FLAGS, "--", *pytest_words)
    lines = [" ".join(line.split()[:4]) for line in text.splitlines()]
    assert {f"attention 3 {kernels.attention.DECODE}: torch", f"add-norm 6 {ADD_AND_NORM}: torch"} <= set(lines)
    assert "though a case measures it: append, 0.0% of the weights\n" in text  # whose template needs a GPU
    assert code == 2


def test_the_plan_needs_no_time(capsys):
    code, text = shown(capsys, "deepseek-v3", "--tp", "8", "--plan")
    assert code == 0
    assert "58 x experts            cutlass_fused_moe t64-h7168-i2048-e256-k8-deepseek_fp8_block_scale-tp8" in text
    assert "deepseek-v3-tp8: 99.7% of the weights and 100.0% of the operations have a case" in text


def test_a_step_is_collected_with_the_apis_between_its_products(pytester, tiny):
    """Without named files, as `flashinfer-perf bench` and pytest in any folder do."""
    asked = (f"--perf-model={tiny}/config.json", "--perf-step=--batch 4 --context 128", "--perf-backends=torch")
    result = pytester.runpytest("--collect-only", "-q", "--import-mode=importlib", *asked)
    ids = [line.rpartition("::")[2] for line in result.outlines if "::" in line]
    apis = [one for one in ids if one.startswith("test_api[")]
    assert f"test_api[{ADD_AND_NORM}-tiny-bs4-h256-torch]" in apis
    assert f"test_api[{SAMPLING}-tiny-bs4-v640-torch]" in apis
    assert len(apis) == 6
    assert len(ids) == len(apis) + len(PRODUCTS)


def test_an_api_that_is_not_installed_or_has_other_sizes_is_a_gap(tiny):
    apis = dict(all_apis())
    del apis[SAMPLING]
    apis[NORM] = apis[ADD_AND_NORM.replace("fused_add_rmsnorm", "fused_rmsnorm_silu")]
    gaps = {one.kernel.name: one.kernel.gap for one in model_step.plan(str(tiny), STEP, apis).planned}
    assert gaps["sampling"] == f"{SAMPLING}: the installed FlashInfer has no such API with a trace template"
    assert gaps["first norm"] == f"{NORM}: the installed FlashInfer's trace template has no batch_size"
    assert gaps["add-norm"] == ""
