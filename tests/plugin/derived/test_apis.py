"""FlashInfer's trace templates as cases: none is lost, each answer is checked, and what is not caught is said."""

import json
import shlex
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_faults import FAULTS

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.flashinfer_benchmark.testlist import cases_of_line
from pytest_flashinfer_perf.fuzz.search import params_of
from pytest_flashinfer_perf.measurement.one_case import check_answer
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.derived import all_apis, prepare, shapes, special_cases, templates, truth
from pytest_flashinfer_perf.routines.derived import given as made
from pytest_flashinfer_perf.routines.derived.by_hand import Template, by_hand
from pytest_flashinfer_perf.routines.derived.templates import WHAT_LACKED, Api, Axis, Declared
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions

SUITE = Path(__file__).parents[2] / "api"
QUICK = ("--perf-iters=2", "--perf-warmup=0", "-p", "no:cacheprovider", "--import-mode=importlib")
RMSNORM = "--api flashinfer.norm.rmsnorm --backends torch --num_tokens 4 --hidden_size 64"

LISTED = """
import json, warnings; warnings.simplefilter("ignore")
import flashinfer, flashinfer.api_logging as log, pytest_flashinfer_perf.routines.derived.registry as registry
registry.describe()
both = [t for _, t, _ in log._TRACE_REGISTRY if t.init is not None and t.reference is not None]
print(json.dumps([len(log._TRACE_REGISTRY), len(both), len({id(t) for t in both})]))
"""


def test_no_template_of_the_registry_is_lost():
    asked = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True)
    entries, complete, _ = json.loads(asked.stdout.splitlines()[-1])
    found = templates.installed()
    added = sum(isinstance(one, Template) for one in by_hand().values())
    lacked = sum(api.by_hand == WHAT_LACKED for api in found.usable)
    assert (len(found.apis) - added, len(found.usable) - lacked) == (entries, complete)
    assert lacked > added
    assert all(not api.missing for api in found.apis if api.by_hand)
    assert set(all_apis()) == {api.name for api in found.usable}
    assert all(api.missing.startswith("its template has no ") for api in found.apis if api not in found.usable)


def test_special_cases_are_in_one_place_and_counted():
    """An entry more is a debt more: the bounds are what there is."""
    of_names = (special_cases.SYNONYMS, special_cases.COUNTS, special_cases.SMALL_EXPERTS, special_cases.GATHERED)
    of_flags = (special_cases.AXES, special_cases.DEFAULTS, special_cases.ARGUMENTS, special_cases.ANYWAY)
    counts = (len(special_cases.APIS), sum(map(len, of_names)), len(special_cases.LINES), sum(map(len, of_flags)))
    assert all(now <= most for now, most in zip(counts, (30, 23, 21, 40), strict=True)), counts


def test_each_special_case_of_an_api_is_of_a_template():
    labels = [f" {api.path} {api.label} " for api in templates.installed().usable]
    assert [part for part in special_cases.APIS if not any(part in label for label in labels)] == []


def test_the_first_entry_that_has_a_fact_decides_it():
    [mxfp4] = [api for api in templates.installed().usable if api.label == "mxfp4_quantize"]
    found = special_cases.special(mxfp4)
    assert (found.not_compared, found.weak) == (("quantized", "scales"), "")


def test_every_tier_of_every_api_has_shapes_with_ids_of_their_own():
    for api in all_apis().values():
        for tier in ("smoke", "default"):
            ids = [shape.id for shape in api.tiers[tier]()]
            assert ids
            assert len(set(ids)) == len(ids), api.name


MEASURED = (
    "norm.rmsnorm",
    "norm.fused_add_rmsnorm",
    "rope.apply_rope_pos_ids_inplace",
    "activation.silu_and_mul",
    "cascade.merge_state_in_place",
)


def test_apis_are_measured_and_checked_as_any_case(pytester):
    wanted = [f"flashinfer.{name} --backends torch" for name in MEASURED]
    sizes = ("--batch_size 3", "--batch_size 3", "--nnz 3", "--nnz 3", "--seq_len 3")
    sizes = (*sizes[:3], "--num_tokens 3", sizes[4])
    cases = [f"--perf-case=--api {name} {size}" for name, size in zip(wanted, sizes, strict=True)]
    result = pytester.runpytest(*cases, "--benchmark-json=run.json", *QUICK)
    result.assert_outcomes(passed=len(MEASURED))
    rows = {row["extra_info"]["routine"]: row for row in json.loads(Path("run.json").read_text())["benchmarks"]}
    for name in MEASURED:
        row = rows[f"flashinfer.{name}"]["extra_info"]
        assert (row["derived"], row["reference"], row["no_reference"]) == (True, "float64", None), name
        assert row["refcheck"] == "passed"
        assert "faults_missed" not in row, "faults are planted where a check is judged, not where a kernel is measured"
        assert row["family"] == name.partition(".")[0]
        assert row["repro"].startswith(f"pytest '--perf-case=--api flashinfer.{name} --backends torch")


def test_a_suite_of_apis_is_asked_for_by_an_option(pytester):
    result = pytester.runpytest(
        "--perf-api", "--perf-suite=smoke", "--perf-backends=torch", "-k", "silu_and_mul-", "-q", *QUICK
    )
    result.assert_outcomes(passed=1, deselected=len(all_apis()) - 1)
    result.stdout.fnmatch_lines(["flashinfer.activation.silu_and_mul on cpu*"])


@pytest.mark.parametrize("which", ["--api flashinfer.norm.rmsnorm --hidden_size 64", "flashinfer.norm.rmsnorm/*"])
def test_a_quarantine_of_an_api_is_of_that_api_alone(pytester, which):
    entry = f'"{which}" = {{ reason = "it is wrong", link = "https://example.org/1" }}'
    pytester.makefile(".toml", **{"flashinfer-perf": f"[quarantine]\n{entry}\n"})
    others = ("--api flashinfer.norm.layernorm --batch_size 2", "--routine bmm_fp8 --m 4 --n 16 --k 16")
    cases = [f"--perf-case={case} --backends torch" for case in others]
    pytester.runpytest(*cases, *QUICK).assert_outcomes(passed=2)
    pytester.runpytest(f"--perf-case={RMSNORM}", *QUICK).assert_outcomes(skipped=1)


@pytest.mark.parametrize(("bounds", "passed"), [("rtol = 0.01", 1), ("rtol = 1e-6, scale = 1e-6", 0)])
def test_a_projects_tolerances_decide_of_an_apis_answer(pytester, bounds, passed):
    pytester.makefile(".toml", **{"flashinfer-perf": f'[tolerances]\n"flashinfer.norm.rmsnorm" = {{ {bounds} }}\n'})
    pytester.runpytest(f"--perf-case={RMSNORM}", *QUICK).assert_outcomes(passed=passed, failed=1 - passed)


def test_a_file_of_lines_may_name_apis(pytester):
    pytester.path.joinpath("lines.txt").write_text(RMSNORM)
    pytester.runpytest("lines.txt", *QUICK).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "axes", "elements"),
    [
        ("norm.rmsnorm", {"batch_size": 4, "hidden_size": 64}, 4 * 64 + 64 + 4 * 64),
        ("concat_ops.concat_mla_k", {"num_tokens": 4}, 4 * (128 * 128 + 64) + 4 * 128 * 192),
    ],
)
def test_bytes_are_those_of_what_is_read_and_written(name, axes, elements):
    """An argument that `init` only allocates is not read."""
    api = all_apis()[f"flashinfer.{name}"]
    params = api.params(**axes)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(params, x, LaunchOptions("torch", cuda_graph=False))
    assert api.cost(params, x).bytes == elements * 2


@pytest.mark.parametrize("name", ["fused_add_rmsnorm", "gemma_fused_add_rmsnorm"])
def test_what_a_call_changes_counts_once_though_the_template_does_not_tie_it_to_its_output(name):
    """The reference of the first does not know what the call changes, the template of the second not where it is."""
    api = all_apis()[f"flashinfer.norm.{name}"]
    params = api.params(batch_size=4, hidden_size=64)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    changed = {name: x.call[name] + 1 for name in ("input", "residual")}
    made.first_call(x, made.Given({**x.call, **changed}, {}), dict)
    assert api.cost(params, x).bytes == (4 * 4 * 64 + 64) * 2


@pytest.mark.parametrize(("flops", "moved"), [(0, 3 * 2), (1, 64 + 2 * 2)])
def test_an_append_moves_the_rows_that_it_changes(flops, moved):
    """Not the whole cache, unless there are products, which may read it."""
    declared = (Declared("cache", "cache", dims=("pages", "dim")), Declared("rows", "rows", dims=("n", "dim")))
    api = Api("flashinfer.x", "x", "x", "page", (), (), declared, (Declared("cache", "cache"),))
    x = made.Given({"cache": torch.zeros(64, 8), "rows": torch.ones(2, 8)}, {})
    appended = {**x.call, "cache": torch.zeros(64, 8).index_fill(0, torch.tensor([3, 9]), 1.0)}
    made.first_call(x, made.Given(appended, {}), dict)
    assert prepare.cost(api, x, flops=flops).bytes == moved * 8 * 4


def test_products_of_a_reference_are_flops():
    api = all_apis()["flashinfer.gemm.gemm_base.bmm_bf16"]
    params = api.params(batch_size=2, M=4, N=8, K=16)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(params, x, LaunchOptions("torch", cuda_graph=False))
    assert api.cost(params, x).flops == 2 * 2 * 4 * 8 * 16


def test_the_reference_answers_once_for_cost_and_check_and_once_more_for_changed_inputs(monkeypatch):
    api = all_apis()["flashinfer.norm.rmsnorm"]
    params = api.params(batch_size=4, hidden_size=64)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(params, x, LaunchOptions("torch", cuda_graph=False))
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


def test_a_backend_that_is_wrong_is_seen():
    """Of a template whose reference is right, a call whose answer has one row of another."""
    api = all_apis()["flashinfer.norm.rmsnorm"]

    def spoiled(params, x, how):
        built = api.backends["torch"].build(params, x, how)
        return type(built)(lambda x: (FAULTS["one row wrong"](built.launch(x)[0]),), "wrong")

    api.backend("wrong")(spoiled)
    try:
        with pytest.raises(WrongAnswerError):
            check_answer(api, "wrong", api.params(batch_size=8, hidden_size=64), device="cpu")
    finally:
        del api.backends["wrong"]


def test_a_shape_that_a_template_refuses_is_a_skip_with_its_sentence():
    api = all_apis()["flashinfer.norm.rmsnorm"]
    params = api.params(batch_size=4, hidden_size=64, arguments="what=1")
    with pytest.raises(CannotRunError, match=r"flashinfer.norm.rmsnorm has no argument what"):
        check_answer(api, "torch", params, device="cpu")


def test_an_argument_that_the_reference_does_not_know_is_no_answer():
    api = all_apis()["flashinfer.norm.rmsnorm"]
    params = api.params(batch_size=4, hidden_size=64, arguments="eps=0.5")
    with pytest.raises(CannotRunError, match="no reference: its template's does not know of eps"):
        check_answer(api, "torch", params, device="cpu")


def test_the_torch_backend_is_of_a_cpu(hopper):
    api = all_apis()["flashinfer.norm.rmsnorm"]
    limits = api.backends["torch"].limits(api.params(batch_size=4), "torch", hopper)
    assert list(limits) == ["torch is the template's reference, which is timed on a CPU only"]


@pytest.mark.parametrize("name", ["nobody", "flashinfer.norm.rmsnrm"])
def test_an_unknown_api_is_an_error_with_the_known_ones(name):
    with pytest.raises(ParamError, match=f"api: unknown name '{name}'"):
        cases_of_line(shlex.split(f"--api {name} --num_tokens 4"), all_routines())


def test_a_case_is_written_as_it_is_read():
    [case] = cases_of_line(shlex.split(RMSNORM), all_routines())
    assert case.words == shlex.split(RMSNORM.replace("num_tokens", "batch_size"))
    assert cases_of_line(case.words, all_routines()) == [case]


def test_apis_are_listed_by_family(capsys):
    assert cli.main(["list", "--api", "rope"]) == 0
    printed = capsys.readouterr().out
    assert "rope (13 of 13 templates can be measured)" in printed
    assert "flags     --nnz --batch_size=4" in printed
    assert cli.main(["list", "--api", "rope", "--json"]) == 0
    assert all("rope" in api["name"] for api in json.loads(capsys.readouterr().out))
    assert cli.main(["list", "--api", "nobody"]) == 2


@pytest.mark.parametrize("shape", [(8,), (1, 8), (4, 8), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_each_fault_is_another_answer(shape, dtype):
    torch.manual_seed(0)
    right = torch.randn(shape).to(dtype)
    same = {name for name, spoil in FAULTS.items() if torch.equal(spoil(right).float(), right.float())}
    assert same == ({"scaled by 2 %"} if dtype.itemsize == 1 else set())  # less than such a type can tell apart


DRAWN = (
    "activation.gelu_and_mul",
    "activation.gelu_tanh_and_mul",
    "activation.silu_and_mul",
    "cascade.merge_state",
    "cascade.merge_state_in_place",
    "cascade.merge_states",
    "concat_ops.concat_mla_k",
    "decode.single_decode_with_kv_cache",
    "gdn_decode.gated_delta_rule_decode",
    "norm.fused_add_rmsnorm",
    "norm.fused_rmsnorm_silu",
    "norm.gemma_rmsnorm",
    "norm.layernorm",
    "norm.rmsnorm",
    "norm.rmsnorm_quant",
    "rope.apply_llama31_rope_pos_ids",
    "rope.apply_rope",
    "rope.apply_rope_pos_ids_inplace",
    "rope.mla_rope_quantize_fp8",
    "rope.rope_quantize_fp8",
)


@pytest.mark.parametrize("name", DRAWN)
def test_drawn_axes_make_no_false_alarm(name):
    api = all_apis()[f"flashinfer.{name}"]

    @given(params=params_of(api.params), seed=st.integers(0, 99))
    @settings(max_examples=2, database=None)
    def right(params, seed):
        check_answer(api, "torch", params, seed, device="cpu")

    right()


def test_wider_inputs_are_of_wider_types():
    api = templates.installed().usable
    one = next(api for api in api if api.path == "flashinfer.norm.rmsnorm")
    x = made.make(one, shapes.params_of(one)(batch_size=2, hidden_size=8), "cpu", 1)
    answer, computed_in = truth.answer(one, x)
    assert (answer["output"].dtype, computed_in) == (torch.float32, "float64")


def test_letters_of_ids_tell_axes_apart():
    api = Api("flashinfer.x", "x", "x", "x", (Axis("head_dim", 64), Axis("hidden_div", 2), Axis("M", None)))
    params = shapes.params_of(api)
    assert params(M=3, head_dim=8).slug() == "head_dim=8-M3"
    assert params(M=3).slug() == "M3"
