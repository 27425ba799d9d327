"""Files of `flashinfer_benchmark.py` lines as pytest collects, runs and reports them; no line is ever lost."""

import random
import tempfile
from pathlib import Path

import pytest
import upstream_parsers
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import mutated
from testlists import DECODE, GEMM, LINES

from pytest_flashinfer_perf.engine.one_case import obstacle
from pytest_flashinfer_perf.extensions.testlists import testlist
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.plugin import lines


def test_each_line_is_measured_as_it_says(run):
    rows = run(LINES, "lines.txt").document["benchmarks"]
    assert [row["stats"]["rounds"] for row in rows] == [3, 4, 2]
    assert [row["name"] for row in rows] == [
        "bmm_fp8[m4-n16-k16-torch]",
        "bmm_fp8[m4-n16-k16-torch-2]",
        "BatchDecodeWithPagedKVCacheWrapper[b1-s8-h2-kv1-d16-p4-torch]",
    ]
    assert rows[0]["extra_info"]["case"] == "bmm_fp8/m4-n16-k16-torch"
    assert rows[2]["extra_info"]["case_tag"] == "two words"
    assert "--num_iters 3 --dry_run_iters 0" in rows[0]["extra_info"]["repro"]


def test_lines_are_selected_as_any_other_test(run):
    assert run(LINES, "lines.txt", "-k", "bmm_fp8").outcomes == {"passed": 2, "deselected": 1}
    assert run(LINES, "lines.txt", "-m", "attention").outcomes == {"passed": 1, "deselected": 2}
    assert run(LINES, "lines.txt::bmm_fp8[m4-n16-k16-torch-2]").outcomes == {"passed": 1}


TYPED = [
    (f"{GEMM} --iterations 3", "unknown flag --iterations"),
    (f"{GEMM} --batch_sise 3", "unknown flag --batch_sise (did you mean --batch_size?)"),
    (GEMM.replace("--k 16", ""), "the following arguments are required: --k"),
    (GEMM.replace("bmm_fp8", "bmm_fp7"), "routine: unknown name 'bmm_fp7', did you mean bmm_fp8?"),
    (GEMM.replace("torch", "troch"), "backends: unknown name 'troch', did you mean torch?"),
    (f"{GEMM} --case_tag 'open", "No closing quotation"),
    (f"{GEMM} --num_iters 0", "num_iters: must be at least 1, got 0"),
    ("--batch_size 1", "the following arguments are required: --routine/-R"),
    (GEMM.replace("--k 16", "--kk 16"), "unknown flag --kk (did you mean --k?)"),
    (GEMM.replace("--m 4 --n 16", "--mn 4"), "unknown flag --mn (did you mean --n?)"),
    (GEMM.replace("--batch_size", "--b"), "unknown flag --b (did you mean --n?)"),
    (GEMM.replace("--backends", "--backend_"), "unknown flag --backend_ (did you mean --backends?)"),
    (GEMM.replace("--routine", "--rotuine"), "unknown flag --rotuine (did you mean --routine?)"),
]
SHORTENED = [
    GEMM.replace("--backends", "--backend").replace("--batch_size", "--batch"),
    GEMM.replace("--routine", "--rout").replace("--backends torch", "--back=torch"),
]


@pytest.mark.parametrize("line", SHORTENED)
def test_the_first_letters_of_one_flag_alone_are_that_flag_as_upstreams_parser_has_it(line):
    assert [entry.case for entry in _read(line)] == [entry.case for entry in _read(GEMM)] != [None]


MOE = "--routine cutlass_fused_moe --num_tokens 8 --hidden_size 64 --intermediate_size 64 --num_experts 8 --top_k 2"


def test_flags_of_upstreams_other_moe_routines_say_nothing():
    wider = f"{MOE} --use_functional_api --b12x_quant_mode w4a16 --rank 8 --num_loras 2 --num_slices 2"
    assert [entry.case for entry in _read(wider)] == [entry.case for entry in _read(MOE)] != [None, None]


@pytest.mark.parametrize(("line", "sentence"), TYPED)
def test_what_cannot_be_understood_is_named_with_the_nearest(line, sentence):
    [entry] = _read(line)
    assert entry.problem.startswith(sentence)


@pytest.mark.parametrize(
    "name", [*sorted(upstream_parsers.ROUTINES_SINCE), "cute_dsl_fp4_block_scale_moe", "b12x_fused_moe"]
)
def test_newer_routines_and_backends_of_upstream_are_known_names(name):
    [entry, *_] = _read(f"--routine {name} --num_tokens 8")
    assert entry.missing.startswith(f"{name}: ")
    [entry] = _read(GEMM.replace("torch", "cute-dsl-prims"))
    assert entry.missing == "bmm_fp8 has no backend cute-dsl-prims in this project"


def test_lines_without_a_case_stop_no_other_and_are_in_the_summary_and_beside_the_rows(run):
    norm = "--routine mixed_comm --batch_size 1 --hidden_size 64\n"
    done = run(f"{norm}{GEMM} fa2 -n 1\n{norm}{GEMM} --what 1\n", "lines.txt", "-rs")
    assert (done.code, done.outcomes) == (pytest.ExitCode.TESTS_FAILED, {"passed": 1, "skipped": 3, "failed": 1})
    counts = ["    2  mixed_comm needs NVLink multicast, *", "    1  bmm_fp8 has no backend fa2 in this project"]
    done.says("3 cases skipped", *counts, "1 line not understood", "    1  lines.txt:4: unknown flag*")
    done.says("*lines.txt:1: mixed_comm needs NVLink multicast*")
    done.says("*lines.txt:2: bmm_fp8 has no backend fa2 in this project*")
    assert "Traceback" not in done.out
    kept = done.document["flashinfer_perf"]["unmeasured"]
    ended = {one["line"].partition(":")[2]: one["outcome"] for one in kept}
    assert ended == {"1": "skipped", "2": "skipped", "3": "skipped", "4": "failed"}
    assert kept[0]["reason"] == "lines.txt:1: mixed_comm needs NVLink multicast, which can put GPUs out of service"
    assert len({one["case"] for one in kept}) == 4


def test_an_option_names_a_list_whatever_it_is_called_and_replaces_the_configured_paths(run, pytester):
    pytester.makeini("[pytest]\ntestpaths = elsewhere")
    pytester.mkdir("elsewhere")
    assert run(LINES, "--perf-testlist=my.list", name="my.list").outcomes == {"passed": 3}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mark_before_the_text_loses_no_line(run, pytester, encoding):
    (pytester.path / "marked.txt").write_bytes(f"{GEMM} -n 1\n{GEMM} -n 2\n".encode(encoding))
    ids = [f"marked.txt::bmm_fp8[m4-n16-k16-torch{nth}]" for nth in ("", "-2")]
    for way in ("marked.txt", "--perf-testlist=marked.txt"):
        listed = run(f"{GEMM} -n 1\n", "lines.txt", way, "--collect-only", "-q")
        assert [line for line in listed.result.outlines if line.startswith("marked.txt::")] == ids


def test_a_folder_is_no_list(run, pytester):
    (pytester.mkdir("lists") / "test_other.py").write_text("def test_a(): pass")
    refused = run("", "--perf-testlist=lists")
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    refused.complains("*'lists' is a folder: name its files, as --perf-testlist=lists/FILE")


def test_a_list_that_asks_for_nothing_is_an_error(run):
    done = run("# nothing\n", "--perf-testlist=lines.txt")
    assert done.code == pytest.ExitCode.INTERRUPTED
    done.says("*lines.txt: has no case: write a line such as --routine NAME with its flags")
    assert run("", "--perf-testlist=not-there.txt").code == pytest.ExitCode.USAGE_ERROR


def test_a_text_of_doctests_is_left_to_doctest(run):
    assert run(">>> 1 + 1\n2\n", "lines.txt").outcomes == {"passed": 1}
    assert run("words about --routine\n\n>>> 1 + 1\n3\n", "lines.txt").outcomes == {"failed": 1}


TRTLLM = f"{MOE.replace('cutlass_fused_moe', 'trtllm_fp8_block_scale_moe')} --routing_method renormalize"
WITHOUT_BACKENDS = {
    DECODE: ["fa2"],
    GEMM: ["cudnn"],
    GEMM.replace("bmm_fp8", "mm_fp8"): ["trtllm_low_latency"],
    "--routine gemm_fp8_nt_groupwise --m 4 --n 128 --k 128": ["cutlass", "trtllm", "cutile"],
    MOE: ["cutlass"],
    TRTLLM: ["trtllm"],
    "--routine rmsnorm --batch_size 4 --hidden_size 64": ["flashinfer"],
}


@pytest.mark.parametrize("line", WITHOUT_BACKENDS)
def test_without_backends_upstreams_are_measured_and_torch_stands_in(line):
    cases = [entry.case for entry in _read(line.replace(" --backends torch", ""))]
    assert [case.backend_name for case in cases if not case.stands_in] == WITHOUT_BACKENDS[line]
    assert [case.backend_name for case in cases if case.stands_in] == ["torch"]


def test_torch_stands_in_for_small_cases_where_there_is_no_gpu(run):
    large = "--num_tokens 1024 --hidden_size 1024 --intermediate_size 1024 --num_experts 256 --top_k 8"
    many = GEMM.replace("--m 4 --n 16 --k 16", "--m 2048 --n 2048 --k 8192")
    lines = f"{TRTLLM} -n 1\n--routine trtllm_fp4_block_scale_moe {large}\n{many}\n".replace(" --backends torch", "")
    done = run(lines, "lines.txt", "-rs")
    assert done.outcomes == {"passed": 1, "skipped": 5}
    for needs in ("about * GiB", "68.7 GFLOP"):
        done.says(f"*torch stands in for small cases only, this one needs {needs}: --backends torch measures it")


def test_torch_stands_in_for_nothing_on_a_gpu(hopper):
    [*_, stand_in] = _read(MOE)
    assert obstacle(stand_in.case, hopper) == "torch stands in where there is no GPU: --backends torch measures it here"
    [asked] = _read(f"{MOE} --backends torch")
    assert obstacle(asked.case, hopper, most_gib=0) == "needs more than the 0 GiB of --perf-max-memory"


def test_a_run_says_which_backends_instead_and_what_is_too_large(run):
    lines = f"{GEMM.replace('torch', 'cudnn cublas')} -n 1\n{GEMM} --m 4096 --n 8192 --k 8192\n"
    done = run(lines, "lines.txt", "--perf-backends=torch", "--perf-max-memory=0.1", "-rs")
    assert done.outcomes == {"passed": 1, "skipped": 1}
    done.says("*needs more than the 0.1 GiB of --perf-max-memory*")


def _read(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "list.txt")
        path.write_text(text)
        return testlist.read(path)


def _asked(text):
    return [part for part in text.splitlines() if part.strip() and not part.lstrip().startswith("#")]


@settings(max_examples=300)
@given(st.randoms(use_true_random=False), st.integers(0, 30), st.sampled_from([GEMM, DECODE]))
def test_a_mutated_line_is_an_entry_or_a_comment(rand: random.Random, changes, line):
    text = mutated(rand, line, changes)
    entries = _read(text)
    assert len(entries) >= len(_asked(text))
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(bool(entry.case) + bool(entry.missing) + bool(entry.problem) == 1 for entry in entries)


COMMON = "--no_cuda_graph --use_cupti --refcheck --random_seed 7 -v -n 20 -d 3 --case_tag x --generate_repro_command"
SUM = "--routine allreduce_fusion --num_tokens 64 --hidden_size 4096"
A2A = "--routine moe_a2a_dispatch_combine --num_tokens 64 --hidden_size 7168 --num_experts 256 --top_k 8"
MIXED = "--routine mixed_comm --local_bs_list 1 4 16 --hidden_size 4096 --dtype bfloat16 --local_tp_size 4 "
BETWEEN_GPUS = {  # each flag of the script's three routines, and the backends that run or why none does
    f"{SUM} {COMMON}": "trtllm trtllm-oneshot trtllm-twoshot nccl vllm mnnvl auto torch",
    f"{SUM} --ar_backend trtllm --pattern ar_residual_rmsnorm_dynamic_fp8 --input_dtype float16 --enable_pdl": "trtllm",
    f"{SUM} --ar_backend auto --pattern ar_residual_rmsnorm --validate --use_cuda_events": "auto",
    f"{SUM} --ar_backend mnnvl": "mnnvl",
    f"{A2A} {COMMON} --quant_dtype nvfp4 --validate --nvtx --per_phase_timing --max_num_tokens 99": "trtllm nccl torch",
    f"{A2A} --quant_dtype fp8_block_scale --intermediate_size 2048 --real_math": "--real_math has no place here: leave",
    f"{A2A} --input_dtype float16 --use_lora": "--use_lora has no place here: leave it out",
    f"{MIXED} --local_dp_size 2 --inter_tp_size 2 --inter_dp_size 1 --node_id 0": "mixed_comm needs NVLink multicast",
    "--routine decode_cp_a2a_alltoall --batch_size 4": "decode_cp_a2a_alltoall needs memory of an NVLink fabric",
    "--routine decode_cp_a2a_lse_reduce --batch_size 4": "in a test with perf_ranks, by perf.time",
}


def test_lines_between_gpus_run_by_the_backends_they_name_or_say_what_to_do():
    for line, expected in BETWEEN_GPUS.items():
        entries = lines.read(line, "here")
        found = [entry.missing or entry.problem or entry.case.backend_name for entry in entries]
        assert sorted(found) == sorted(expected.split()) or expected in found[0], line
    [refused] = lines.read(f"{SUM} --ar_backend auto", "here")
    assert "needs NVLink multicast" in obstacle(refused.case, devices.find("cpu"))


def test_a_line_of_megabytes_is_refused_by_its_length(tmp_path):
    path, start = tmp_path / "list.txt", "--routine mm_fp8 --m 4 --n 8 --k 8 --backends "
    path.write_text("\n".join(f"{start}{'x' * size}" for size in (100, 90_000, 5_000_000)))
    problems = [entry.problem for entry in testlist.read(path)]
    assert all(len(problem) < 300 for problem in problems)
    assert problems[2] == "the line has 5,000,046 characters, more than 100,000 are no flags of a case"
