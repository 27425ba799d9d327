"""FlashInfer's trace templates as cases: none is lost, each answer is checked, and what is not caught is said."""

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import planted_apis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.apis import (
    all_apis,
    discovery,
    exceptions,
    faults,
    registry,
    routine,
    sampling,
    shapes,
    truth,
)
from pytest_flashinfer_perf.apis import given as made
from pytest_flashinfer_perf.apis.known import Api, Axis, Declared
from pytest_flashinfer_perf.checking.check import WrongAnswerError, compare
from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.flashinfer_benchmark import testlist, upstream
from pytest_flashinfer_perf.flashinfer_benchmark.lines import read
from pytest_flashinfer_perf.fuzz.strategies import params_of
from pytest_flashinfer_perf.measuring.walk import check_answer, run_case
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions, Shape

SUITE = Path(__file__).parents[1] / "api"
QUICK = ("--perf-iters=2", "--perf-warmup=0", "-p", "no:cacheprovider", "--import-mode=importlib")
RMSNORM = "--api flashinfer.norm.rmsnorm --backends torch --num_tokens 4 --hidden_size 64"

LISTED = """
import json, warnings; warnings.simplefilter("ignore")
import flashinfer, flashinfer.api_logging as log, pytest_flashinfer_perf.apis.registry as registry
registry.describe()
both = [t for _, t, _ in log._TRACE_REGISTRY if t.init is not None and t.reference is not None]
print(json.dumps([len(log._TRACE_REGISTRY), len(both), len({id(t) for t in both})]))
"""


def test_no_template_of_the_registry_is_lost():
    asked = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True)
    entries, complete, _ = json.loads(asked.stdout.splitlines()[-1])
    found = discovery.registry()
    assert (len(found.apis), len(found.usable)) == (entries, complete)
    assert set(all_apis()) == {api.name for api in found.usable}
    assert all(api.missing.startswith("its template has no ") for api in found.apis if api not in found.usable)


def test_exceptions_are_few_and_each_is_of_a_template():
    lines = [*exceptions.WEAK, *exceptions.OTHERWISE, *exceptions.ARGUMENTS, *exceptions.SMALL]
    assert len(lines) <= 20
    labels = {api.label for api in discovery.registry().usable}
    assert [part for part in lines if not any(part in label for label in labels)] == []


def test_every_tier_of_every_api_has_shapes_with_ids_of_their_own():
    for api in all_apis().values():
        for tier in ("smoke", "default"):
            ids = [shape.id for shape in api.tiers[tier]()]
            assert ids
            assert len(set(ids)) == len(ids), api.name


MEASURED = {
    "norm.rmsnorm": ("float64", []),
    "norm.fused_add_rmsnorm": ("float64", []),
    "rope.apply_rope_pos_ids_inplace": ("float64", []),
    "activation.silu_and_mul": ("float64", []),
    "cascade.merge_state_in_place": ("float64", []),
}


def test_apis_are_measured_and_checked_as_any_case(pytester):
    wanted = [f"flashinfer.{name} --backends torch" for name in MEASURED]
    sizes = ("--batch_size 3", "--batch_size 3", "--nnz 3", "--nnz 3", "--seq_len 3")
    sizes = (*sizes[:3], "--num_tokens 3", sizes[4])
    cases = [f"--perf-case=--api {name} {size}" for name, size in zip(wanted, sizes, strict=True)]
    result = pytester.runpytest(*cases, "--benchmark-json=run.json", *QUICK)
    result.assert_outcomes(passed=len(MEASURED))
    rows = {row["extra_info"]["routine"]: row for row in json.loads(Path("run.json").read_text())["benchmarks"]}
    for name, (computed_in, missed) in MEASURED.items():
        row = rows[f"flashinfer.{name}"]["extra_info"]
        assert (row["derived"], row["reference"], row["faults_missed"]) == (True, computed_in, missed), name
        assert row["refcheck"] == "passed"
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


@pytest.mark.parametrize(("bounds", "missed"), [("", []), ("rtol = 0.1, scale = 0.1", ["scaled by 2 %"])])
def test_a_projects_tolerances_decide_of_an_apis_answer_and_of_planted_faults(pytester, bounds, missed):
    entry = f'"flashinfer.norm.rmsnorm" = {{ {bounds or "rtol = 0.01"} }}'
    pytester.makefile(".toml", **{"flashinfer-perf": f"[tolerances]\n{entry}\n"})
    pytester.runpytest(f"--perf-case={RMSNORM}", "--benchmark-json=run.json", *QUICK).assert_outcomes(passed=1)
    [row] = json.loads(Path("run.json").read_text())["benchmarks"]
    assert row["extra_info"]["faults_missed"] == missed


def test_a_file_of_lines_may_name_apis(pytester):
    pytester.path.joinpath("lines.txt").write_text(RMSNORM)
    pytester.runpytest("lines.txt", *QUICK).assert_outcomes(passed=1)


def test_bytes_are_those_of_what_is_read_and_written():
    api = all_apis()["flashinfer.norm.rmsnorm"]
    params = api.params(batch_size=4, hidden_size=64)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(params, x, LaunchOptions("torch", cuda_graph=False))
    assert api.cost(params, x).bytes == (4 * 64 + 64 + 4 * 64) * 2


def test_products_of_a_reference_are_flops():
    api = all_apis()["flashinfer.gemm.gemm_base.bmm_bf16"]
    params = api.params(batch_size=2, M=4, N=8, K=16)
    x = api.inputs(params, torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(params, x, LaunchOptions("torch", cuda_graph=False))
    assert api.cost(params, x).flops == 2 * 2 * 4 * 8 * 16


def test_a_backend_that_is_wrong_is_seen():
    """Of a template whose reference is right, a call whose answer has one row of another."""
    api = all_apis()["flashinfer.norm.rmsnorm"]

    def spoiled(params, x, how):
        built = api.backends["torch"].build(params, x, how)
        return type(built)(lambda x: (faults.FAULTS["one row wrong"](built.launch(x)[0]),), "wrong")

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
        read(shlex.split(f"--api {name} --num_tokens 4"), all_routines())


def test_a_case_is_written_as_it_is_read():
    [case] = read(shlex.split(RMSNORM), all_routines())
    assert case.words == shlex.split(RMSNORM.replace("num_tokens", "batch_size"))
    assert read(case.words, all_routines()) == [case]


LINES = {
    "--routine rmsnorm --batch_size 32 --hidden_size 8192 --input_dtype float16 --enable_pdl": (
        "flashinfer.norm.rmsnorm",
        {"batch_size": 32, "hidden_size": 8192, "dtype": "float16", "arguments": "enable_pdl=True"},
    ),
    "--routine apply_rope --batch_size 16 --seq_len 64 --num_qo_heads 8 --num_kv_heads 2 --head_dim 64": (
        "flashinfer.rope.apply_rope",
        {"nnz": 1024, "num_q_heads": 8, "num_k_heads": 2, "head_dim": 64, "dtype": "float16"},
    ),
    "--routine softmax --batch_size 4 --vocab_size 128": (
        "flashinfer.sampling.softmax",
        {"batch_size": 4, "arguments": "enable_pdl=False"},
    ),
    "--routine top_k_ragged_transform --batch_size 4 --num_rows 8": (
        "flashinfer.topk.top_k_ragged_transform",
        {"num_rows": 8, "max_len": 4096, "k": 50},
    ),
    "--routine apply_rope_with_cos_sin_cache --batch_size 2 --seq_len 8 --num_qo_heads 8 --num_kv_heads 2 --head_dim 64"
    " --input_dtype bfloat16 --interleave": (
        "flashinfer.rope.apply_rope_with_cos_sin_cache",
        {"nnz": 16, "arguments": "is_neox=False", "num_q_heads_x_head_size": 512, "dtype": "bfloat16"},
    ),
    "--routine gated_delta_rule_decode --batch_size 4 --state_layout nontranspose": (
        "flashinfer.gdn_decode.gated_delta_rule_decode",
        {"batch_size": 4},
    ),
    "--routine gated_delta_rule_decode --batch_size 4": (
        "flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose",
        {"batch_size": 4},
    ),
    "--routine top_k_sampling_from_probs --batch_size 4 --vocab_size 128 --top_k 5 --refcheck -vv": (
        "flashinfer.sampling.top_k_sampling_from_probs",
        {"batch_size": 4, "vocab_size": 128, "arguments": "top_k=5"},
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_upstreams_is_that_api(line):
    name, expected = LINES[line]
    [case, *_] = read(shlex.split(line), all_routines())
    assert case.routine.name == name
    assert {field: getattr(case.params, field) for field in expected} == expected


def test_what_of_upstreams_is_no_api_is_named_with_its_reason(tmp_path):
    lines = {
        "--routine rmsnorm --batch_size 4 --hidden_size 64 --num_heads 2": "its template has no --num_heads",
        "--routine mixed_comm --batch_size 4": "mixed_comm is a routine that this project does not have",
        "--routine b12x_fused_moe --num_tokens 4": "its template has no init",
    }
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(lines))
    entries = testlist.read(path)
    assert len(entries) == len(lines)
    for entry, sentence in zip(entries, lines.values(), strict=True):
        assert sentence in entry.missing


def test_every_routine_of_upstreams_on_one_gpu_is_an_api_or_has_a_reason(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(f"--routine {name}" for name in sorted(upstream.ROUTINES)))
    for entry in testlist.read(path):
        communicates = any(name in entry.name for name in upstream.COMMUNICATION)
        assert entry.case or entry.problem or communicates or ": " in entry.missing, entry
        assert not entry.problem or "are required" in entry.problem, entry


def test_apis_are_listed_by_family(capsys):
    assert cli.main(["list", "--api", "rope"]) == 0
    printed = capsys.readouterr().out
    assert "rope (13 of 13 templates can be measured)" in printed
    assert "flags     --nnz --batch_size=4" in printed
    assert cli.main(["list", "--api", "nobody"]) == 2


probabilities = torch.linspace(1, 4, 8).expand(2048, 8).softmax(-1)
SAMPLER = Api(
    "flashinfer.x", "x", "x", "sampling", (), (), (Declared("probs", "probs"),), (Declared("samples", "samples"),)
)


@given(seed=st.integers(0, 1000))
@settings(max_examples=30)
def test_a_right_sampler_is_right(seed):
    torch.manual_seed(seed)
    expected = sampling.probabilities(SAMPLER, {"probs": probabilities, "top_k": 5})
    samples = torch.multinomial(expected, 1)[:, 0]
    assert not compare(sampling.excess(samples, expected), torch.zeros(1), sampling.ALLOWED).rule


WRONG = {
    "the likeliest": lambda p: p.argmax(-1),
    "zeros": lambda p: torch.zeros(len(p)),
    "any of them": lambda p: torch.randint(3, 8, (len(p),)),
    "one impossible": lambda p: torch.cat([torch.multinomial(p, 1)[:-1, 0], torch.tensor([0])]),
    "no token": lambda p: torch.full((len(p),), 2**31 - 1),
    "one too few": lambda p: torch.multinomial(p, 1)[:-1, 0],
}


@pytest.mark.parametrize("which", WRONG)
def test_a_wrong_sampler_is_wrong(which):
    torch.manual_seed(0)
    expected = sampling.probabilities(SAMPLER, {"probs": probabilities, "top_k": 5})
    found = compare(sampling.excess(WRONG[which](expected), expected), torch.zeros(1), sampling.ALLOWED)
    assert found.rule


def chain(*, seed, rows=512):
    torch.manual_seed(seed)
    draft, target = (torch.randn(rows, n, 8).softmax(-1) for n in (3, 4))
    ids = torch.multinomial(draft.reshape(-1, 8), 1).reshape(rows, 3)
    expected = sampling.probabilities(CHAIN, {"draft_probs": draft, "draft_token_ids": ids, "target_probs": target})
    return expected, ids, target


CHAIN = replace(
    SAMPLER, inputs=tuple(Declared(name, name) for name in ("draft_probs", "draft_token_ids", "target_probs"))
)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_a_chain_of_proposed_tokens_has_the_targets_distribution(seed):
    """Speculative sampling is a way to draw from the target: so it comes out, whatever the draft is."""
    expected, ids, target = chain(seed=seed)
    samples = sampling.tokens(expected, ids)
    assert not compare(sampling.excess(samples, expected, ids), torch.zeros(1), sampling.ALLOWED).rule
    assert not compare(sampling.excess(samples[:, 0], target[:, 0].double()), torch.zeros(1), sampling.ALLOWED).rule


CHAINS = {
    "all accepted": lambda one: torch.cat([one.ids, one.drawn[:, -1:].clamp(min=0)], -1),
    "the likeliest": lambda one: one.target.argmax(-1),
    "goes on": lambda one: one.drawn.clamp(min=0),
}


@pytest.mark.parametrize("which", CHAINS)
def test_a_wrong_chain_is_wrong(which):
    expected, ids, target = chain(seed=0)
    wrong = CHAINS[which](SimpleNamespace(drawn=sampling.tokens(expected, ids), ids=ids, target=target))
    assert compare(sampling.excess(wrong, expected, ids), torch.zeros(1), sampling.ALLOWED).rule


def test_what_rounding_keeps_of_a_nucleus_is_not_compared():
    values = torch.tensor([[0.5, 0.3, 0.1, 0.1]])
    sure = sampling.undecided({"top_p": 0.85}, values)
    unsure = sampling.undecided({"top_p": torch.tensor([0.8])}, values)
    assert (sure.tolist(), unsure.tolist()) == ([[False] * 4], [[False, False, True, False]])


@given(rows=st.integers(1, 5), p=st.floats(0.05, 1.0), k=st.integers(1, 8))
def test_filtered_probabilities_are_the_largest_ones(rows, p, k):
    values = torch.rand(rows, 8).softmax(-1)
    left = sampling.probabilities(SAMPLER, {"probs": values, "top_k": k, "top_p": torch.full((rows,), p)})
    assert torch.allclose(left.sum(-1), torch.ones(rows, dtype=torch.float64))
    for row, kept in zip(values, left > 0, strict=True):
        assert kept.sum() <= k
        assert row[kept].min() >= row[~kept].max() if (~kept).any() else True


@pytest.mark.parametrize("shape", [(8,), (1, 8), (4, 8), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn])
def test_each_fault_is_another_answer(shape, dtype):
    torch.manual_seed(0)
    right = torch.randn(shape).to(dtype)
    same = {name for name, spoil in faults.FAULTS.items() if torch.equal(spoil(right).float(), right.float())}
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
    api = discovery.registry().usable
    one = next(api for api in api if api.path == "flashinfer.norm.rmsnorm")
    x = made.make(one, shapes.params_of(one)(batch_size=2, hidden_size=8), "cpu", 1)
    answer, computed_in = truth.answer(one, x, torch.device("cpu"))
    assert (answer["output"].dtype, computed_in) == (torch.float32, "float64")


def test_letters_of_ids_tell_axes_apart():
    api = Api("flashinfer.x", "x", "x", "x", (Axis("head_dim", 64), Axis("hidden_div", 2), Axis("M", None)))
    params = shapes.params_of(api)
    assert params(M=3, head_dim=8).slug() == "head_dim=8-M3"
    assert params(M=3).slug() == "M3"


def planted(name):
    """Its calls by `flashinfer`, on a CPU."""
    path = f"{planted_apis.__name__}.{name}"
    found = {known: entry for known, entry in registry.registered().items() if known[0] == path}
    [((path, label), entry)] = found.items()
    api = routine.of(registry.described(path, label, entry, 1))
    for backend in api.api.backends:
        api.backends[backend] = replace(api.backends[backend], requires=())
    return api, api.api.backends[0]


RIGHT = (
    "doubled",
    "doubled_in_place",
    "doubled_to",
    "doubled_under_another_name",
    "doubled_with_a_size",
    "DoubleWrapper.run",
)


@pytest.mark.parametrize("name", RIGHT)
def test_a_call_of_any_form_is_checked(name):
    api, backend = planted(name)
    check_answer(api, backend, api.params(rows=4), device="cpu")


@pytest.mark.parametrize("name", ["doubled_wrongly", "half_written"])
def test_a_wrong_call_is_wrong(name):
    api, backend = planted(name)
    with pytest.raises(WrongAnswerError):
        check_answer(api, backend, api.params(rows=4), device="cpu")


def test_a_call_whose_kernel_writes_nothing_is_named():
    api, backend = planted("unwritten")
    with pytest.raises(WrongAnswerError, match="output y: the call returns it as it was allocated"):
        check_answer(api, backend, api.params(rows=4), device="cpu")
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_exchanges_data_between_gpus_is_a_skip_on_one(hopper):
    api = all_apis()["flashinfer.comm.dcp_alltoall.decode_cp_a2a_alltoall"]
    reasons = [require(hopper) for require in api.backends["flashinfer"].requires]
    assert f"{api.name} exchanges data between GPUs, and its template makes one rank alone" in reasons


def test_the_scale_that_an_api_takes_by_default_is_of_its_queries():
    api = all_apis()["flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run"]
    x = api.inputs(api.params(batch_size=2), torch.Generator().manual_seed(1), torch.device("cpu"))
    answer, _ = truth.answer(api.api, x, torch.device("cpu"))
    q, (k, v) = x.call["q"], x.call["paged_kv_cache"]
    keys, values = (t[:4].flatten(0, 1).repeat_interleave(4, 1).transpose(0, 1).float() for t in (k, v))
    first = torch.nn.functional.scaled_dot_product_attention(q[0, :, None].float(), keys, values)[:, 0]
    assert torch.allclose(answer["output"][0].float(), first, atol=2e-2)


def test_an_output_whose_reference_answers_otherwise_is_not_compared():
    api = all_apis()["flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache"]
    x = api.inputs(api.params(nnz=4), torch.Generator().manual_seed(1), torch.device("cpu"))
    api.backends["torch"].build(api.params(nnz=4), x, LaunchOptions("torch", cuda_graph=False))
    answer, _ = truth.answer(api.api, x, torch.device("cpu"))
    assert set(answer) == {"q_rope_out", "q_nope_out", "paged_kv_cache[1]"}


def test_a_refusal_is_a_skip_with_the_librarys_sentence():
    api, backend = planted("refused")
    with pytest.raises(
        CannotRunError, match=r"planted_apis\.refused refuses: NotImplementedError: no kernel for this GPU"
    ):
        check_answer(api, backend, api.params(rows=4), device="cpu")


def test_an_answer_in_place_is_put_back_between_timed_calls(cpu):
    api, backend = planted("doubled_in_place")
    case = Case(api, Shape(api.params(rows=4)), backend)
    measured = run_case(case, Measuring(iters=40, warmup=0), Checking(), cpu).measurement
    assert len(measured.samples) == 40
    assert not measured.verdict.faults
    assert max(check.absolute.expected for check in measured.checks) < 2**8
