"""`flashinfer-perf run` takes commands of `flashinfer_benchmark.py`, and prints and writes what scripts read."""

import csv
import io
import json
import re
import shlex

import pytest
from old_commands import ONE_LINE

from pytest_flashinfer_perf.engine.one_case import obstacle
from pytest_flashinfer_perf.extensions.testlists import run_command
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.plugin import lines

GEMM = "--routine bmm_fp8 --batch_size 1 --m 4 --n 16 --k 16 --backends torch"


@pytest.fixture
def ran(session):
    """What `flashinfer-perf run` gives to pytest, in a folder of the user's."""
    return lambda command: session(*run_command.as_pytest(shlex.split(command)), quick=False)


def rows(done):
    return list(csv.DictReader(io.StringIO((done.folder / "out.csv").read_text())))


@pytest.fixture
def shown(pytester, command):
    """The exit code and the lines of the whole command, on a CPU."""
    pytester.chdir()

    def shown(line, *beside):
        code, text = command(*shlex.split(f"run {line}"), "--", "--perf-device=cpu", *beside)
        return code, text.splitlines()

    return shown


@pytest.mark.parametrize("prefix", ["", "python3 flashinfer_benchmark.py ", "python a/flashinfer_benchmark.py "])
def test_run_takes_the_old_scripts_command(ran, prefix):
    done = ran(f"{prefix}{GEMM} --num_iters 3 -vv --output_path out.csv -- -v --perf-case-tag=ci")
    assert done.outcomes["passed"] == 1
    [row] = rows(done)
    assert (row["routine"], row["m"]) == ("bmm_fp8", "4")
    done.says("*test_bmm_fp8[[]m4-n16-k16-torch[]]*")


def test_run_takes_its_testlist_and_says_the_flags_beside_it_of_each_line(ran, pytester):
    lines = f"{GEMM}\n{GEMM} --m 8 --random_seed 5\n--routine bmm_fp9\n"
    (pytester.path / "my.txt").write_text(lines)
    done = ran("--testlist my.txt --output_path out.csv --num_iters 2 --random_seed 7 --case_tag 'a b'")
    assert done.outcomes == {"passed": 2, "failed": 1}
    done.says("*my.txt:3: routine: unknown name 'bmm_fp9'*")
    written = [(row["m"], row["random_seed"], row["case_tag"]) for row in rows(done)]
    assert written == [("4", "7", "a b"), ("8", "5", "a b")]


# GiB that such cards have, less what a context takes.
MEMORY = {"NVIDIA H200": 139, "NVIDIA B200": 178}


@pytest.mark.parametrize("command", ONE_LINE, ids=lambda command: command.partition("--routine ")[2][:9])
def test_a_command_of_the_documents_runs_as_it_stands_with_each_backend_on_the_gpu_that_it_is_for(
    command, hopper, blackwell, monkeypatch
):
    """FA3 is Hopper's, and everything else is Blackwell's, whose card the documents were written on."""
    monkeypatch.setattr(Device, "free_bytes", lambda device: MEMORY[device.name] << 30)
    words = shlex.split(command)
    line = next(word for word in run_command.as_pytest(words) if word.startswith("--perf-case=")).partition("=")[2]
    asked = [entry.case for entry in lines.read(line, "") if not entry.case.stands_in]
    assert {case.routine.name for case in asked} == {words[words.index("--routine") + 1]}
    skipped = {c.backend_name: obstacle(c, hopper if c.backend_name == "fa3" else blackwell) for c in asked}
    assert set(skipped.values()) == {None}, skipped


LINES = r"""
^\[INFO\] args = Namespace\(routine='bmm_fp8', backends=\['torch', 'cudnn'\], random_seed=42, .* m=4, n=16, k=16, .*\)$
^\[INFO\] args = .* num_iters=3, dry_run_iters=5, verbose=2, .*\)$
^\[INFO\] Running testBmmFp8$
^\[INFO\] FlashInfer version:\ .
^\[VVERBOSE\] gpu_name = '.+'$
^\[INFO\] To reproduce this test case, run the following command: pytest '--perf-case=--routine bmm_fp8
^\[VVERBOSE\] a.shape = torch.Size\(\[1, 4, 16\]\)$
^\[PERF\] torch          :: median time \d+\.\d{3} ms; std \d+\.\d{3} ms; achieved tflops \d+\.\d{3} TFLOPs/sec;
^\[INFO\] test_bmm_fp8\[m4-n16-k16-cudnn\]: cudnn needs .*\. Skipping\.$
^\[PERF\] .*::test_neg *:: median time
"""


def test_the_lines_that_scripts_read(shown, pytester):
    pytester.makepyfile(test_own="import torch\ndef test_neg(perf): perf.time(torch.neg, torch.ones(8))")
    code, said = shown(f"{GEMM} cudnn --num_iters 3 -vv", "--perf-iters=3", "test_own.py")
    assert code == 0
    for line in LINES.strip().splitlines():
        assert re.search(line, "\n".join(said), re.MULTILINE), line


SHAPES = {
    "--routine trtllm_fp4_block_scale_moe": "[VVERBOSE] stored.first.shape = torch.Size([4, 512, 128])",
    "--routine trtllm_fp8_block_scale_moe": "[VVERBOSE] stored.first.shape = torch.Size([4, 512, 256])",
    "--routine trtllm_fp8_per_tensor_scale_moe": "[VVERBOSE] stored.first.dtype = torch.float8_e4m3fn",
    "--api flashinfer.norm.rmsnorm": "[VVERBOSE] call.input.shape = torch.Size([8, 256])",
}
MOE = "--num_tokens 8 --hidden_size 256 --intermediate_size 256 --num_experts 4 --top_k 1 --routing_method renormalize"
PRETENDED = """
    import dataclasses, pytest
    from pytest_flashinfer_perf.session.stash import DEVICE

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(item):
        if "-torch" not in item.name:
            item.config.stash[DEVICE] = dataclasses.replace(item.config.stash[DEVICE], capability=(9, 0))
"""


def test_very_verbose_lines_print_the_inputs_of_every_routine(shown, pytester):
    sizes = {name: MOE if "moe" in name else "--batch_size 8 --hidden_size 256" for name in SHAPES}
    (pytester.path / "my.txt").write_text(
        "\n".join(f"{name} {sizes[name]} --backends torch -n 2 -vv" for name in SHAPES)
    )
    code, said = shown("--testlist my.txt")
    assert code == 0
    assert set(SHAPES.values()) <= set(said)
    named = [line.partition("'")[2].partition("'")[0] for line in said if line.startswith("[INFO] args = ")]
    assert named == [name.partition(" ")[2] for name in SHAPES]


def test_what_a_gpu_cannot_run_is_upstreams_warning_and_what_fails_or_has_no_case_is_named_by_its_line(shown, pytester):
    pytester.makeconftest(PRETENDED)
    wrong = f"{GEMM}  --what 1"
    (pytester.path / "my.txt").write_text(f"{GEMM} cutlass -n 1 -v\n{wrong}\n--routine mixed_comm --batch_size 1\n")
    code, said = shown("--testlist my.txt")
    assert code == 1
    assert "[WARNING] cutlass for routine bmm_fp8 is not supported on compute capability 9.0. Skipping." in said
    assert f"[ERROR] Error running test: {wrong}" in said
    assert "[ERROR] Error: my.txt:2: unknown flag --what" in said
    sentence = "my.txt:3: mixed_comm needs NVLink multicast, which can put GPUs out of service. Skipping."
    assert f"[INFO] line[mixed_comm_--batch_size_1]: {sentence}" in said


def test_what_only_upstream_has_is_the_same_skip_without_a_list(shown, pytester):
    code, said = shown("--routine mixed_comm --batch_size 1", "--benchmark-json=run.json")
    assert code == 5
    sentence = "mixed_comm needs NVLink multicast, which can put GPUs out of service"
    assert f"[INFO] line[mixed_comm_--batch_size_1]: --perf-case: {sentence}. Skipping." in said
    assert f"    1  {sentence}" in said
    [one] = json.loads((pytester.path / "run.json").read_text())["flashinfer_perf"]["unmeasured"]
    assert (one["line"], one["outcome"], one["reason"]) == ("--perf-case", "skipped", f"--perf-case: {sentence}")
    code, said = shown(f"{GEMM} fa2 -n 3")
    assert code == 0
    sentence = "--perf-case: bmm_fp8 has no backend fa2 in this project"
    assert f"[INFO] bmm_fp8[m4-n16-k16-fa2]: {sentence}. Skipping." in said


@pytest.mark.parametrize("option", ["--output_path ''", "--testlist ''"])
def test_a_file_without_a_name_is_refused(ran, option):
    assert ran(f"{GEMM} {option} -- --perf-device=cpu").code == pytest.ExitCode.USAGE_ERROR


def test_run_says_what_it_does_not_understand(ran):
    done = ran("--testlst my.txt")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert "unknown flag --testlst (did you mean --testlist?)" in done.err


def test_run_without_a_word_asks_for_one(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        command("run", "--", "-v")
    assert "nothing to measure: give --routine NAME" in capsys.readouterr().err
