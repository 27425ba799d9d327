"""FlashInfer's trace templates as cases: none is lost, each answer is checked, and what is not caught is said."""

import shlex
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from derived_cases import api_of, built, cases, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf import check_answer, cli
from pytest_flashinfer_perf.extensions.apis import by_hand, call_inputs, prepare, registry, shapes, special_cases, truth
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.apis.templates import Api, Axis, Declared, installed
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import CannotRunError
from pytest_flashinfer_perf.strategies import params_of

PLANTED = "planted_apis."
EXPERIMENTAL = "flashinfer.attention.prims_ts."  # by FlashInfer's own word; imported by the routines that call them
HERE = ("--perf-warmup=0", "--import-mode=importlib")


@pytest.mark.filterwarnings("ignore")  # of modules of FlashInfer that are imported here first
def test_no_template_of_the_registry_is_lost():
    """What this process has imported of FlashInfer's, beside what other tests declare, and what is stored of it."""
    described, found, theirs = registry.describe(), installed(), registry.flashinfers()
    entries = [entry for (path, _), (_, entry) in theirs.items() if not path.startswith((PLANTED, EXPERIMENTAL))]
    complete = [one for one in entries if one.init is not None and one.reference is not None]
    added = 1  # `top_k`, which has none
    assert (len(found.apis) - added, len(found.usable) - added) == (len(entries), len(complete))
    assert list(found.apis) == [api for api in described.apis if not api.path.startswith((PLANTED, EXPERIMENTAL))]
    assert by_hand.TEMPLATES.keys() <= {api.path for api in found.usable}
    assert set(all_apis()) == {api.name for api in found.usable}
    assert all(api.missing.startswith("its template has no ") for api in found.apis if api not in found.usable)


def test_each_special_case_of_an_api_is_of_a_template():
    labels = [f" {api.path} {api.label} " for api in installed().usable]
    assert [part for part in special_cases.APIS if not any(part in label for label in labels)] == []


def test_the_first_entry_that_has_a_fact_decides_it():
    [mxfp4] = [api for api in installed().usable if api.label == "mxfp4_quantize"]
    found = special_cases.special(mxfp4)
    assert (found.not_compared, found.weak) == (("quantized", "scales"), "")


def test_every_tier_of_every_api_has_shapes_with_ids_of_their_own():
    for name, each in all_apis().items():
        for tier in ("smoke", "default"):
            ids = [shape.id for shape in each.tiers[tier]()]
            assert 0 < len(ids) == len(set(ids)), name


MEASURED = {
    "norm.fused_add_rmsnorm": "--batch_size 3 --hidden_size 64",
    "rope.apply_rope_pos_ids_inplace": "--nnz 3",
    "activation.silu_and_mul": "--num_tokens 3",
    "cascade.merge_state_in_place": "--seq_len 3",
}


def listed(pytester, *lines):
    pytester.path.joinpath("lines.txt").write_text("\n".join(f"{line} --backends torch" for line in lines))
    return "lines.txt"


def test_apis_of_a_file_are_measured_and_checked_as_any_case(session, pytester):
    done = session(listed(pytester, *(f"--api flashinfer.{name} {sizes}" for name, sizes in MEASURED.items())), *HERE)
    assert done.outcomes == {"passed": len(MEASURED)}
    rows = {row["extra_info"]["routine"]: row["extra_info"] for row in done.document["benchmarks"]}
    for name in MEASURED:
        row = rows[f"flashinfer.{name}"]
        assert (row["derived"], row["reference"], row["no_reference"]) == (True, "float64", None), name
        assert row["refcheck"] == "passed"
        assert "faults_missed" not in row, "faults are planted where a check is judged, not where a kernel is measured"
        assert row["family"] == name.partition(".")[0]
        assert row["repro"].startswith(f"pytest '--perf-case=--api flashinfer.{name} --backends torch")


def test_a_suite_of_apis_is_asked_for_by_an_option(session):
    done = session("--perf-api", "--perf-suite=smoke", "--perf-backends=torch", "-k", "silu_and_mul-", *HERE)
    assert done.outcomes == {"passed": 1, "deselected": len(all_apis()) - 1}
    done.says("flashinfer.activation.silu_and_mul on cpu*")


SETTINGS = """
[quarantine]
"--api flashinfer.norm.rmsnorm --hidden_size 64" = { reason = "it is wrong", link = "https://example.org/1" }
"flashinfer.norm.gemma_rmsnorm/*" = { reason = "it is wrong", link = "https://example.org/1" }
[tolerances]
"flashinfer.norm.fused_rmsnorm_silu" = { rtol = 1e-6, scale = 1e-6 }
"flashinfer.norm.layernorm" = { rtol = 0.01 }
"""


def test_a_projects_settings_of_an_api_are_of_that_api_alone(session, pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": SETTINGS})
    skipped = [f"--api flashinfer.norm.{name} --batch_size 2 --hidden_size 64" for name in ("rmsnorm", "gemma_rmsnorm")]
    failing = "--api flashinfer.norm.fused_rmsnorm_silu --num_tokens 2"
    passing = ("--api flashinfer.norm.layernorm --batch_size 2", "--routine bmm_fp8 --m 4 --n 16 --k 16")
    done = session(listed(pytester, *skipped, failing, *passing), *HERE)
    assert done.outcomes == {"skipped": 2, "failed": 1, "passed": 2}, done.out


@pytest.mark.parametrize(
    ("name", "axes", "elements"),
    [
        ("norm.rmsnorm", {"batch_size": 4, "hidden_size": 64}, 4 * 64 + 64 + 4 * 64),
        ("concat_ops.concat_mla_k", {"num_tokens": 4}, 4 * (128 * 128 + 64) + 4 * 128 * 192),
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(name, axes, elements):
    """An argument that `init` only allocates is not read."""
    api, params, x = built(name, **axes)
    assert api.cost(params, x).bytes == elements * 2


@pytest.mark.parametrize("name", ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm"])
def test_what_a_call_changes_counts_once_though_the_template_does_not_tie_it_to_its_output(name):
    """The reference of the first does not know what the call changes, the template of the second not where it is."""
    params = api_of(f"norm.{name}").params(batch_size=4, hidden_size=64)
    x = inputs(api_of(f"norm.{name}"), params)
    changed = {name: x.call[name] + 1 for name in ("input", "residual")}
    call_inputs.first_call(x, call_inputs.CallInputs({**x.call, **changed}, {}), dict)
    assert api_of(f"norm.{name}").cost(params, x).bytes == (4 * 4 * 64 + 64) * 2


@pytest.mark.parametrize(("flops", "moved"), [(0, 3 * 2), (1, 64 + 2 * 2)])
def test_an_append_moves_the_rows_that_it_changes(flops, moved):
    """Not the whole cache, unless there are products, which may read it."""
    declared = (Declared("cache", "cache", dims=("pages", "dim")), Declared("rows", "rows", dims=("n", "dim")))
    api = Api("flashinfer.x", "x", "x", "page", (), (), declared, (Declared("cache", "cache"),))
    x = call_inputs.CallInputs({"cache": torch.zeros(64, 8), "rows": torch.ones(2, 8)}, {})
    appended = {**x.call, "cache": torch.zeros(64, 8).index_fill(0, torch.tensor([3, 9]), 1.0)}
    call_inputs.first_call(x, call_inputs.CallInputs(appended, {}), dict)
    assert prepare.cost(api, x, flops=flops).bytes == moved * 8 * 4


def test_products_of_a_reference_are_flops():
    api, params, x = built("gemm.gemm_base.bmm_bf16", batch_size=2, M=4, N=8, K=16)
    assert api.cost(params, x).flops == 2 * 2 * 4 * 8 * 16


def test_the_reference_answers_once_for_cost_and_check_and_once_more_for_changed_inputs(monkeypatch):
    api, params, x = built("norm.rmsnorm", batch_size=4, hidden_size=64)
    answer, answered = truth.answer, []
    monkeypatch.setattr(truth, "answer", lambda *of: answered.append(1) or answer(*of))
    api.cost(params, x)
    prepared = x.shared.prepared
    [first] = api.reference(params, x)
    assert (len(answered), prepared.outputs) == (1, ("output",))
    x.call["input"].neg_()
    [second] = api.reference(params, x)
    assert len(answered) == 2
    assert torch.equal(second, -first)
    with pytest.raises(FrozenInstanceError):
        prepared.cost = None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("what=1", "flashinfer.norm.rmsnorm has no argument what"),
        ("eps=0.5", "no reference: its template's does not know of eps"),
    ],
)
def test_an_argument_that_nobody_knows_is_a_skip_with_that_sentence(arguments, sentence):
    params = api_of("norm.rmsnorm").params(batch_size=4, hidden_size=64, arguments=arguments)
    with pytest.raises(CannotRunError, match=sentence):
        check_answer(api_of("norm.rmsnorm"), "torch", params, device="cpu")


def test_the_torch_backend_is_of_a_cpu(hopper):
    limits = (
        api_of("norm.rmsnorm").backends["torch"].limits(api_of("norm.rmsnorm").params(batch_size=4), "torch", hopper)
    )
    assert list(limits) == ["torch is the template's reference, which is timed on a CPU only"]


@pytest.mark.parametrize("name", ["nobody", "flashinfer.norm.rmsnrm"])
def test_an_unknown_api_is_an_error_with_the_known_ones(name):
    with pytest.raises(ParamError, match=f"api: unknown name '{name}'"):
        cases(f"--api {name} --num_tokens 4")


def test_a_case_is_written_as_it_is_read():
    [case] = cases("--api flashinfer.norm.rmsnorm --backends torch --num_tokens 4 --hidden_size 64")
    assert shlex.join(case.words) == "--api flashinfer.norm.rmsnorm --backends torch --batch_size 4 --hidden_size 64"
    assert cases(shlex.join(case.words)) == [case]


def test_apis_are_listed_by_family(capsys):
    assert cli.main(["list", "--api", "rope"]) == 0
    printed = capsys.readouterr().out
    assert "rope (13 of 13 templates can be measured)" in printed
    assert "flags     --nnz --batch_size=4" in printed
    assert cli.main(["list", "--api", "nobody"]) == 2


DRAWN = {
    "activation": ("gelu_and_mul", "silu_and_mul"),
    "cascade": ("merge_state_in_place", "merge_states"),
    "concat_ops": ("concat_mla_k",),
    "decode": ("single_decode_with_kv_cache",),
    "gdn_decode": ("gated_delta_rule_decode",),
    "norm": ("fused_add_rmsnorm", "fused_rmsnorm_silu", "layernorm", "rmsnorm_quant"),
    "rope": ("apply_rope", "apply_rope_pos_ids_inplace", "rope_quantize_fp8"),
}


@pytest.mark.parametrize("name", [f"{family}.{name}" for family, names in DRAWN.items() for name in names])
def test_drawn_axes_make_no_false_alarm(name):
    @given(params=params_of(api_of(name).params), seed=st.integers(0, 99))
    @settings(max_examples=2, database=None)
    def right(params, seed):
        check_answer(api_of(name), "torch", params, seed, device="cpu")

    right()


def test_wider_inputs_are_of_wider_types():
    [one] = [one for one in installed().usable if one.path == "flashinfer.norm.rmsnorm"][:1]
    x = call_inputs.make(one, shapes.params_of(one)(batch_size=2, hidden_size=8), "cpu", 1)
    answer, computed_in = truth.answer(one, x)
    assert (answer["output"].dtype, computed_in) == (torch.float32, "float64")


def test_letters_of_ids_tell_axes_apart():
    api = Api("flashinfer.x", "x", "x", "x", (Axis("head_dim", 64), Axis("hidden_div", 2), Axis("M", None)))
    params = shapes.params_of(api)
    assert params(M=3, head_dim=8).slug() == "head_dim=8-M3"
    assert params(M=3).slug() == "M3"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--perf-api"], ["api"]),
        (["--perf-case=--api flashinfer.norm.rmsnorm --hidden_size 256"], ["attention", "gemm", "moe", "comm", "api"]),
        (["--perf-case", "--routine=rmsnorm --batch_size 4"], ["attention", "gemm", "moe", "comm", "api"]),
        (["--perf-case=--routine mm_bf16 --m 4"], ["attention", "gemm", "moe", "comm"]),
    ],
)
def test_apis_are_looked_for_where_options_ask_for_one(words, found, pytester):
    assert [Path(path).name for path in pytester.parseconfigure(*words).args] == found


def test_a_process_that_has_met_no_api_yet_measures_one_that_a_line_names(session):
    pytest.importorskip("flashinfer")
    asked = "--perf-case=--api flashinfer.norm.rmsnorm --batch_size 4 --hidden_size 64 --backends torch"
    assert session(asked, process=True).outcomes["passed"] == 1
