"""Modules compiled first: which ones, all at once and once only, into FlashInfer's cache or for another machine."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toolkit import Toolkit

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.prebuild import building, loop
from pytest_flashinfer_perf.extensions.prebuild.patches import HERE, NOWHERE, PRETENDED, Anything, Pretence, recording
from pytest_flashinfer_perf.spec.routine import CannotRunError

flashinfer = pytest.importorskip("flashinfer", exc_type=ImportError)
env = pytest.importorskip("flashinfer.jit.env", exc_type=ImportError)
PLUGIN = f"-p{loop.PLUGIN}"
LINES = """
--routine BatchDecodeWithPagedKVCacheWrapper --backends fa2 fa3 cudnn --batch_size 64 --s_kv 8192 --page_size 16 \
--num_qo_heads 8 --num_kv_heads 2 --head_dim_qk 128
--routine bmm_fp8 --backends cublas cutlass --batch_size 1 --m 16 --n 64 --k 64
--routine mm_bf16 --backends tinygemm --m 4 --n 64 --k 128 --bias
--routine mm_bf16 --backends cublaslt torch --m 16 --n 64 --k 64
"""
TYPES = "dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_dtype_idx_i32_head_dim_qk_128_head_dim_vo_128"
WITHOUT = "posenc_0_use_swa_False_use_logits_cap_False"
# By these names an H200 has compiled them for the same lines, with 0.6.18 and with 0.7.2.
COMPILED_ON_AN_H200 = {
    f"batch_decode_with_kv_cache_{TYPES}_{WITHOUT}",
    f"batch_prefill_with_kv_cache_{TYPES}_{WITHOUT}_f16qk_False_sm90",
    "gemm",
    "tinygemm2",
    "mm_bf16_cublaslt",
}
# A first call of an API gets copies of its inputs, here too large to be held, and its answer is looked at. Of a call
# that several processes make, one process alone would wait for the others for ever.
SIZES = "--num_tokens 16 --hidden_size 512"
LINES_OF_CALLS = f"""
--api flashinfer.sampling.softmax --backends flashinfer --batch_size 64
--routine allreduce_fusion --backends trtllm-oneshot trtllm-twoshot vllm nccl torch {SIZES}
--routine moe_a2a_dispatch_combine --backends trtllm nccl {SIZES} --num_experts 16 --top_k 4
"""
OF_CALLS = {"sampling", "trtllm_comm", "vllm_comm", "mnnvl_moe_alltoall"}
ON_BLACKWELL = {"fp8_gemm_cutlass", "blackwell_softmax"}
KEPT = ("-n", "2", "--benchmark-json=kept.json", "--junitxml", "kept.json", "-p", "no:cacheprovider", "-v")


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    made = Toolkit(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def prebuild(tmp_path, monkeypatch, capfd):
    """The command, here: it compiles in a process of its own, whose output it shows."""
    tmp_path.joinpath("lines.txt").write_text(LINES + LINES_OF_CALLS)
    tmp_path.joinpath("kept.json").write_text("kept")
    monkeypatch.chdir(tmp_path)

    def run(*words, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return subprocess.CompletedProcess(words, cli.main(["prebuild", *words]), *capfd.readouterr())

    return run


def test_all_that_the_cases_need_on_any_gpu_is_compiled_at_once_and_kept(toolkit, prebuild, tmp_path, monkeypatch):
    """What cannot be linked costs no other."""
    both = {"FLASHINFER_CUDA_ARCH_LIST": "9.0a 10.0a", "PYTEST_ADDOPTS": "-n 1 -p no:hypothesispytest"}
    done = prebuild(
        "--output", "kernels", "--", "lines.txt", *KEPT, MAX_JOBS="2", MEETS="1", BROKEN="tinygemm2.so", **both
    )
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    needed = COMPILED_ON_AN_H200 | OF_CALLS | ON_BLACKWELL
    assert toolkit.modules == needed - {"tinygemm2"}
    assert toolkit.at_once == 2
    assert re.search(rf"cases: {len(needed)} modules of FlashInfer, [1-9]\d* cannot run there\n", done.stdout), (
        done.stdout
    )
    assert "calls that failed" not in done.stdout
    said = [line.partition(" s  ")[2] for line in done.stdout.splitlines() if re.match(rf"\d+/{len(needed)} ", line)]
    broken = "tinygemm2 does not compile: ld(12): error: no such kernel"
    assert sorted(said) == sorted([*(f"{name} is compiled" for name in toolkit.modules), broken])
    assert f"compiled {len(needed) - 1} of {len(needed)} modules" in done.stdout
    assert tmp_path.joinpath("kept.json").read_text() == "kept"
    monkeypatch.syspath_prepend(tmp_path / "kernels")
    monkeypatch.setattr(env, "FLASHINFER_AOT_PROVIDERS", env._get_aot_providers())
    assert env.get_aot_path("gemm") == tmp_path / "kernels" / building.PACKAGE / building.FOLDER / "gemm" / "gemm.so"
    assert env.get_aot_path("gemm").exists()


def test_what_compiles_writes_and_judges_nothing_of_the_sessions_own_and_keeps_its_shard(pytester):
    """Of others' plugins neither, wherever they are asked to."""
    pytester.makeini("[pytest]\naddopts = --junitxml=junit.xml --perf-gate=nothing.json --perf-html=page")
    others = ("--benchmark-save=saved", "--benchmark-autosave", "--benchmark-json=run.json")
    config = pytester.parseconfig(*others, "--perf-shard=1/2", "--perf-iters=3")
    loop.pytest_cmdline_main(config)
    given = config.option
    assert [given.perf_gate, given.perf_html] == [None, None]
    assert {name: getattr(given, name) for name in loop.OF_OTHERS} == loop.OF_OTHERS
    assert (given.perf_iters, given.perf_shard is not None, given.perf_suite) == (3, True, "default")


def test_what_there_is_no_gpu_to_compile_for_is_said(toolkit, prebuild, monkeypatch):
    monkeypatch.delenv("FLASHINFER_CUDA_ARCH_LIST")
    done = prebuild("--", "lines.txt")
    sentence = "there is no GPU to compile for: name one, such as FLASHINFER_CUDA_ARCH_LIST=9.0a"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"flashinfer-perf prebuild: {sentence}\n")
    assert not toolkit.compiled


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("def test_it(): pass", pytest.ExitCode.USAGE_ERROR, "ERROR: nothing to prebuild: these arguments select no"),
        ("import nothing_there", pytest.ExitCode.INTERRUPTED, "No module named 'nothing_there'"),  # is pytest's to say
    ],
)
def test_what_leaves_nothing_to_compile_is_an_error(session, text, code, sentence):
    done = session(PLUGIN, test_it=text)
    assert done.code == code
    assert sentence in done.out + done.err


def test_without_ninja_nothing_is_tried(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(building.NinjaError, match=r"no ninja in PATH: pip install ninja"):
        building.verify_ninja()


def test_modules_of_another_flashinfer_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv(loop.ARCHITECTURES, "9.0a")
    building.write(tmp_path, [])
    building.verify(tmp_path)
    monkeypatch.setenv(loop.ARCHITECTURES, "10.0a")
    with pytest.raises(building.ArtifactError, match="is of another FlashInfer or for other GPUs, name a new folder"):
        building.verify(tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error_before_anything_is_compiled():
    with pytest.raises(OSError, match="'/proc/flashinfer_jit_cache/"):
        building.verify(Path("/proc"))


def test_the_gpu_that_is_not_there_has_shapes_and_small_contents():
    with Pretence():
        large, small = torch.empty(1 << 20, device="cuda"), torch.arange(4, device=PRETENDED)
        mixed = large[small] * 2
        seen = [tensor.device for tensor in (large, small, mixed, torch.zeros(3, pin_memory=True).cuda())]
        grown = small.repeat_interleave(1 << 20)
        masked = large.view(-1, 4)[large.view(-1, 4)[:, 0] > 0]
        counts = (small.sum().item(), small.tolist(), mixed.shape, float(large[0]), large.random_().is_cuda)
    assert seen == [PRETENDED] * 4
    assert counts == (6, [0, 1, 2, 3], (4,), 1.0, True)
    assert masked.shape == (1, 4)
    assert [t.device for t in (large, small, mixed, grown)] == [NOWHERE, HERE, NOWHERE, NOWHERE]


@pytest.mark.parametrize("shared", [True, False])
def test_a_module_is_compiled_where_its_flashinfer_compiles_it_and_is_current_then(tmp_path, shared):
    """Before 0.6.3 the files of a module were named from a folder that all modules shared."""
    folder = tmp_path / "m"
    there = "m" if shared else folder
    folder.mkdir()
    folder.joinpath("build.ninja").write_text(f"rule make\n  command = touch $out\nbuild {there}/m.so: make\n")
    own = {} if shared else {"build_dir": folder}
    paths = {"ninja_path": folder / "build.ninja", "lock_path": tmp_path / "lock"}
    spec = SimpleNamespace(name="m", sources=["a.cu"], write_ninja=lambda: None, **paths, **own)
    finished = []
    for _ in range(2):
        building.built([spec], lambda *one: finished.append(one))
    assert finished == [("m", None)] * 2
    assert folder.joinpath("m.so").exists()


def test_a_flashinfer_that_loads_modules_in_another_way_is_said(monkeypatch):
    monkeypatch.delattr("flashinfer.jit.core.JitSpec.build_and_load")
    with pytest.raises(CannotRunError, match=r"no JitSpec\.build_and_load, by which prebuild finds"), recording({}):
        pass


def test_anything_is_whatever_is_made_of_it():
    one, (two, three) = Anything(1).plan(3)[0], Anything(1)
    with Anything(1).stream as stream:
        assert (one, two, three, stream, list(Anything(1))) == (1, 1, 1, 1, [1, 1])
    assert not hasattr(Anything(1), "__dlpack__")
