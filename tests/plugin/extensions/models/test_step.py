"""A model's step as cases of a run, and as a budget of their times."""

import subprocess
import sys
import tempfile

import pytest
from reports import document, unmeasured
from step_runs import FLAGS, PRODUCTS, TIMES, completed, recorded_of, rows

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.models import kernels, shipped
from pytest_flashinfer_perf.extensions.models import plan as plans
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.models.kernels import ADD_AND_NORM, NORM, SAMPLING
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.spec.presets import Spread, UnevenError


@pytest.fixture
def collected(session, pytestconfig):
    """The session that collects the suite, or what is asked for where no file is named, and its tests."""

    def collected(*words, families=("attention", "gemm", "comm")):
        tests = [pytestconfig.rootpath / "tests" / family for family in families]
        done = session(*tests, "--collect-only", "-q", "--import-mode=importlib", "--perf-backends=torch", *words)
        return done, [line.rpartition("::")[2] for line in done.result.outlines if "::" in line]

    return collected


def test_a_config_gives_cases_and_names_what_has_none(collected, tiny):
    step = "--perf-step=--tp 2 --batch 4 --context 128 --page-size 16"
    done, ids = collected(f"--perf-model={tiny}/config.json", step)
    assert ids == [
        "test_decode[tiny-tp2-b4-s128-h2-kv1-d64-torch]",
        *(f"test_mm_bf16[tiny-tp2-m4-n{n}-k{k}-torch]" for n, k in ((256, 256), (256, 128), (512, 256), (320, 256))),
        "test_allreduce_fusion[tiny-tp2-t4-h256-g2-torch]",
    ]
    done.says(
        "tiny-tp2: * of the weights have a case",
        "*without a case: embedding (*% of the weights): no routine measures the lookup",
    )


def test_a_shipped_model_has_the_cases_of_a_step_where_one_is_given(collected):
    _, ids = collected("--perf-model=llama-3.1-8b-tp8", "--perf-step=--phase prefill --batch 1")
    assert "test_paged_prefill[llama-3.1-8b-tp8-b1-q8192-s8192-h4-causal-kv1-d128-p64-torch]" in ids
    assert "test_mm_bf16[llama-3.1-8b-tp8-m8192-n768-k4096-torch]" in ids
    assert not any(name.startswith("test_decode") for name in ids)


def test_a_model_replaces_the_tier(collected):
    _, ids = collected("--perf-model=deepseek-r1-tp8-dp16", "-k", "attention")
    assert {name.partition("[")[0] for name in ids} == {"test_mla", "test_ragged_prefill"}
    assert all("[deepseek-r1-tp8-dp16-b" in name for name in ids)
    assert "test_mla[deepseek-r1-tp8-dp16-b16-s1024-torch]" in ids
    _, ids = collected("--perf-model=llama-4-scout", "-k", "attention")
    assert {name.partition("[")[0] for name in ids} == {"test_decode", "test_paged_prefill", "test_ragged_prefill"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--perf-model=llama-3.1-80b"], "unknown name 'llama-3.1-80b', did you mean llama-3.1-8"),
        (["--perf-model=kimi-k3"], "known are deepseek-r1, deepseek-v3, gemma-3-12b,"),
        (["--perf-model=mixtral-8x22b-tp5"], "48 query heads, which 5 GPUs cannot share evenly"),
        (["--perf-step=--batch 4"], "--perf-step needs --perf-model"),
        (["--perf-model=llama-3.1-8b", "--perf-step=--batch none"], "--perf-step: argument --batch: must be a whole"),
        (["--perf-model=llama-3.1-8b", "--perf-step=--batch '4"], "--perf-step: No closing quotation: --batch '4"),
        (["--perf-model=gemma-3-12b", "--perf-step=--batch 4"], "unknown name 'gemma-3-12b', did you mean"),
        (["--perf-model=llama-3.1-8b-tp5", "--perf-step=--batch 4"], "has 32 query heads, which 5 GPUs cannot"),
        (["--perf-model=llama-3.1-8b-tp8", "--perf-step=--tp 4"], "--perf-step: --tp 4: the model's name has -tp8"),
    ],
)
def test_a_model_or_step_that_cannot_be_is_one_clear_error(collected, words, sentence):
    done, ids = collected(*words)
    assert (done.code, ids) == (pytest.ExitCode.USAGE_ERROR, [])
    assert sentence in done.err


@pytest.mark.parametrize("spread", [Spread(), Spread(8), Spread(1, 8, 8), Spread(16)])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_a_plan_of_the_config_alone_is_what_this_flashinfer_measures(spread, phase):
    """Of every shipped model, each kernel has problems or a reason; a routine that refused one would be a new gap."""
    known = {**all_routines(), **all_apis()}
    for name in shipped.names():
        try:
            plan = plans.of(name, Step(phase=phase, spread=spread))
        except (kernels.ConfigError, UnevenError) as error:
            assert "GPUs cannot share evenly" in str(error) or "has no experts" in str(error)  # noqa: PT017 - of some
            continue
        there = plans.completed(plan, known)
        assert there.coverage == plan.coverage
        for kernel in there.kernels:
            assert bool(kernel.problems) != bool(kernel.gap), kernel


def test_a_kernel_between_more_gpus_than_a_host_has_is_a_gap(tiny):
    plan = plans.of(str(tiny), Step(batch=4, context=128, spread=Spread(2)))
    assert plans.within(plan, 2).kernels == plan.kernels
    [between] = [kernel for kernel in plans.within(plan, 1).kernels if kernel.name == "all-reduce"]
    assert (between.problems, between.gap) == ((), "needs 2 GPUs of one machine, 1 can be seen")


def test_the_sum_is_each_count_times_the_median_of_the_fastest_backend(shown, plan):
    """By hand: 3 layers of 10 + 20 + 5 + 30 + 15 us and, between, 1 + 1 + 2 + 2 x 3 us; 40 + 3 + 7 us once."""
    found, text = shown()
    assert (found.unmeasured, "sum 320.0 us of " in text) == ([], True)
    _, faster = shown([*rows(plan, TIMES), *rows(plan, {"attention": 8.0})])
    assert "sum 284.0 us" in faster, "the fastest backend counts"
    assert "within this process, incomplete: without embedding (7.8% of the weights)\n" in text
    [gate_up] = [line.split() for line in text.splitlines() if line.startswith("gate-up")]
    assert gate_up == ["gate-up", "3", "mm_bf16:", "fa2", "30.00", "us", "90.00", "us", "28.1%"]


def test_a_sum_says_which_kernels_it_lacks_and_why(shown):
    """Those that read no weights by name alone."""
    found, text = shown({kernel: us for kernel, us in TIMES.items() if kernel not in ("o", "rope")})
    assert [entry.kernel.name for entry in found.unmeasured] == ["rope", "o"]
    assert "within this process, incomplete: without rope, o, embedding (17.2% of the weights)\n" in text
    assert (
        "without a row, though a case measures it: rope, o (9.4% of the weights): run.json has no test of it\n" in text
    )


def test_wrong_rows_and_rows_of_two_gpus_do_not_count(shown, plan):
    wrong = [{**row, "extra_info": {**row["extra_info"], "status": "wrong"}} for row in rows(plan, TIMES)]
    other = [{**row, "extra_info": {**row["extra_info"], "device_name": "NVIDIA H100"}} for row in rows(plan, TIMES)]
    for listed, sentence in ((wrong, "of no device"), ([*rows(plan, TIMES), *other], "of NVIDIA H100 and NVIDIA H200")):
        with pytest.raises(run_file.RunError, match=f"has usable rows {sentence}: a step runs on one GPU"):
            shown(listed)


def test_a_step_is_measured(tiny, capfd, monkeypatch, tmp_path):
    """But for what needs FlashInfer, whose import takes long."""
    monkeypatch.chdir(tmp_path)
    pytest_words = ("--perf-backends=torch", "--perf-iters=3", "--perf-device=cpu", "-k", "not test_api")
    code = cli.main(["model", str(tiny), *FLAGS, "--", *pytest_words])
    text, told = capfd.readouterr()
    title = "tiny: one decode step of 4 requests with 128 tokens"
    assert told.splitlines()[0] == f"{title}: 12 kernels to measure"
    lines = [" ".join(line.split()[:4]) for line in text.splitlines()]
    assert {f"attention 3 {kernels.DECODE}: torch", "gate-up 3 mm_bf16: torch"} <= set(lines)
    assert "though a case measures it: rope, append, " in text
    assert code == 2


def test_an_interrupted_step_leaves_no_folder(tiny, capsys, monkeypatch, tmp_path):
    (tmp_path / "interrupting.py").write_text("import os, signal\nos.kill(os.getppid(), signal.SIGINT)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cli.main(["model", str(tiny), *FLAGS, "--", "-p", "interrupting"]) == 130
    assert capsys.readouterr().err.endswith("flashinfer-perf model: interrupted\n")
    assert list(tmp_path.glob("flashinfer-perf-model-*")) == []


WITHOUT_LIBRARIES = """
import json, sys
sys.modules["torch"] = sys.modules["flashinfer"] = None  # whose import fails
from pytest_flashinfer_perf import cli
sys.exit(cli.main(["model", "deepseek-v3", "--tp", "8", "--plan"]))
"""


def test_a_plan_needs_neither_torch_nor_flashinfer():
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARIES], capture_output=True, text=True, check=True)
    assert "   58 x experts            cutlass_fused_moe --num_tokens 64 --hidden" in done.stdout
    assert "deepseek-v3-tp8: 99.7% of the weights have a case\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([""], "an empty name is no model: name a config.json, "),
        (["."], "could not be read"),
        (["folder"], "folder/config.json could not be read"),
        (["loop"], "loop could not be read"),
        (["folde"], "unknown name 'folde'"),
        (["llama-3.1-8b", "--ep", "2"], "llama-3.1-8b has no experts, which 2 GPUs could share: leave out ep"),
        (["llama-3.1-8b", "--tp", "3"], "llama-3.1-8b has 32 query heads, which 3 GPUs cannot share evenly"),
    ],
)
def test_a_model_that_cannot_be_planned_is_a_sentence(words, sentence, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    code, text = command("model", *words, "--plan")
    assert code == 2
    assert sentence in text


def test_a_kernel_without_a_row_says_how_its_cases_ended(shown, plan):
    """Skips and failures by the backends that they are of, and answers that are not right."""
    names = {kernel.name: kernel for kernel in plan.kernels}
    [attention], [lm_head] = names["attention"].cases, names["lm-head"].cases
    left = [
        ended(attention, "trtllm-gen", reason="it needs compute capability 10.0"),
        ended(attention, "cute-dsl", reason="it needs compute capability 10.0"),
        ended(attention, "fa2", outcome="failed", reason="it crashed\nand more"),
    ]
    measured = [row for row in rows(plan, TIMES) if row["extra_info"]["shape"] not in attention]
    for row in measured:
        row["extra_info"]["status"] = "wrong" if row["extra_info"]["shape"] in lm_head else "ok"
    _, text = shown(recorded_of(plan, document(*measured, left=left)))
    crashed = "trtllm-gen, cute-dsl: skipped: it needs compute capability 10.0; fa2: failed: it crashed\n"
    assert f"though a case measures it: attention: {crashed}" in text
    assert "though a case measures it: lm-head (7.8% of the weights): fa2: its answer is wrong\n" in text


def ended(case, backend, **how):
    routine, _, shape = case.partition("/")
    return unmeasured(backend=backend, routine=routine, shape=shape, case=f"{case}-{backend}", **how)


def test_a_step_is_collected_with_the_apis_between_its_products(collected, tiny):
    """Without named files, as `flashinfer-perf bench` and pytest in any folder do."""
    _, ids = collected(f"--perf-model={tiny}/config.json", "--perf-step=--batch 4 --context 128", families=())
    apis = [one for one in ids if one.startswith("test_api[")]
    assert f"test_api[{ADD_AND_NORM}-tiny-bs4-h256-torch]" in apis
    assert f"test_api[{SAMPLING}-tiny-bs4-v640-torch]" in apis
    assert len(apis) == 6
    assert len(ids) == len(apis) + len(PRODUCTS)


def test_an_api_that_is_not_installed_or_has_other_sizes_is_a_gap(tiny):
    apis = dict(all_apis())
    del apis[SAMPLING]
    apis[NORM] = apis[ADD_AND_NORM.replace("fused_add_rmsnorm", "fused_rmsnorm_silu")]
    gaps = {kernel.name: kernel.gap for kernel in completed(tiny, {**all_routines(), **apis}).kernels}
    assert gaps["sampling"] == f"{SAMPLING}: the installed FlashInfer has no such API with a trace template"
    assert gaps["first norm"] == f"{NORM}: the installed FlashInfer's trace template has no batch_size"
    assert gaps["add-norm"] == ""
