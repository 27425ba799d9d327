"""FlashInfer's own dumps, made by the installed FlashInfer, read as recordings; strange ones are refused."""

import json
import random
import shutil
import subprocess

import known_calls
import pytest
from mutations import as_lines, put

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.traffic import dumps, recording
from pytest_flashinfer_perf.extensions.traffic.recording import RecordingError

LEVEL_10 = """
wrapper = Wrapper(torch.empty(16, dtype=torch.uint8), kv_layout="HND")
for length in (4, 4, 9):
    wrapper.plan(torch.tensor([0, 3, 3 + length]), torch.arange(3 + length), heads=8)
    wrapper.run(A, (A.clone(), A.clone()[:, ::2]), return_lse=True)
mm(A, A.clone(), name="/home/me/secret", scale=0.5)
"""
TRACE = """
from flashinfer.norm import rmsnorm
x = torch.empty(4, 128, dtype=torch.bfloat16)
try:
    rmsnorm(x, x[0])
except Exception:
    pass  # there is no GPU: the trace is written before the kernel is called
"""
LEVELS = ("of_torch", "of_safetensors")


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """The folder with a folder of each program, which dumps by what its first lines set."""
    folder = tmp_path_factory.mktemp("dumps")
    traced = {"FLASHINFER_TRACE_DUMP": "1", "FLASHINFER_TRACE_DUMP_DIR": "traces"}
    programs = {"trace": (traced, TRACE)}
    for nth, name in enumerate(LEVELS):
        programs[name] = ({"FLASHINFER_LOGLEVEL": "10", "FLASHINFER_DUMP_SAFETENSORS": str(nth)}, LEVEL_10)
    texts = {name: (f"os.environ.update({variables})", text) for name, (variables, text) in programs.items()}
    subprocess.run(known_calls.prepared(folder, texts), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    assert {name: (folder / f"{name}.status").read_text() for name in texts} == dict.fromkeys(texts, "0")
    return folder


@pytest.fixture(params=LEVELS)
def level_10(dumped, request):
    return dumped / request.param / "flashinfer_dumps"


def test_a_folder_of_level_10_is_a_recording(level_10, tmp_path):
    out = tmp_path / "traffic.jsonl"
    assert cli.main(["record", "--from", str(level_10), "-o", str(out)]) == 0
    calls = {call.api.rpartition(".")[2]: call for call in recording.read(out).calls}
    assert {name: call.count for name, call in calls.items()} == {"__init__": 1, "plan": 3, "run": 3, "mm": 1}
    run = calls["run"]
    half = {"tensor": [4, 4], "dtype": "bfloat16", "strides": [8, 2]}
    whole = {"tensor": [4, 8], "dtype": "bfloat16"}
    assert run.arguments == {"q": whole, "kv": [whole, half], "return_lse": True}
    assert run.wrapper.init == {"workspace": {"tensor": [16], "dtype": "uint8"}, "kv_layout": "HND"}
    assert run.wrapper.plan["indices"] == {"tensor": [None], "dtype": "int64"}
    assert sorted(one["indptr"]["lengths"] for one in run.samples) == [[3, 4], [3, 4], [3, 9]]
    assert {one["indices"]["reach"] for one in run.samples} == {7, 12}
    assert calls["mm"].arguments["name"] == {"object": "str"}
    assert "secret" not in out.read_text()


def test_a_trace_dump_is_a_recording(dumped, tmp_path):
    made = dumps.of_folder(dumped / "trace" / "traces").recording
    [call] = made.calls
    assert call.api == "flashinfer.norm.rmsnorm"
    assert call.count == 1
    assert {"tensor": [None, 128], "dtype": "bfloat16"} in call.arguments.values()
    recording.write(tmp_path / "traffic.jsonl", made)


def test_strange_dumps_are_read_or_refused_with_one_sentence(level_10, tmp_path):
    """A folder that a line names is never left."""
    good = [json.loads(line) for line in (level_10 / "session.jsonl").read_text().splitlines()]
    folder = shutil.copytree(level_10, tmp_path / "dumps")

    rand, said = random.Random(3), set()
    for _ in range(300):
        put(folder / "session.jsonl", as_lines(rand, good))
        try:
            recording.write(tmp_path / "t.jsonl", dumps.of_folder(folder).recording)
            recording.read(tmp_path / "t.jsonl")
            said.add("")
        except RecordingError as error:
            said.add(str(error))
    assert "" in said
    assert all("\n" not in one for one in said)
    assert len(said) > 10
