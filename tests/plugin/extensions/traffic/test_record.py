"""Programs that make known calls of functions that FlashInfer's own decorator made, recorded from the outside.

Kernels cannot run here, so that the functions are the test's. Without a GPU nothing can be captured in a CUDA graph:
there torch's class is replaced by one with empty methods before FlashInfer is imported, and what is hooked is these.
"""

import json
import os
import statistics
import sys
from pathlib import Path

import known_calls
import pytest
from recorded_programs import EMPTY_GRAPHS, PROGRAMS

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.traffic import recording


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """All of them, with FlashInfer's own logging; FlashInfer is imported by each."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "sitecustomize.py").write_text(EMPTY_GRAPHS)  # it shows, too, that one that is hidden runs
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("FLASHINFER_LOGLEVEL", "1")
        patch.setenv("FLASHINFER_LOGDEST", "/dev/null")
        return known_calls.recorded(folder, PROGRAMS, first="from os import _exit as early")


def test_every_program_ends_as_if_it_were_not_recorded(ran):
    assert {name: ran.status(name) >> 8 for name in PROGRAMS} == dict.fromkeys(PROGRAMS, 0) | {"stuck": 3}
    assert ran.code == 0
    assert not (ran.folder / "t.jsonl.pieces").exists()


def test_a_process_is_one_however_often_flashinfers_decorator_is_imported(ran):
    assert ran.counts("reloaded") == {"mm": 1, "lambda": 1}
    assert ran.recording.head.processes == len(PROGRAMS) - 1, "one calls nothing"
    assert ran.recording.head.flashinfer == "0.7.2"


@pytest.mark.parametrize("name", ["stuck", "ending", "kept", "killed"])
def test_calls_are_written_by_a_program_that(ran, name):
    """Ends in a call, as a signal's handler may end it, while the thread that writes waits for that call; has taken
    `os._exit` before FlashInfer was imported; needs the attributes of FlashInfer's functions; is killed once they are.
    """
    assert ran.counts(name) == {"mm": 1}


def test_a_call_has_its_wrapper_and_the_lengths_of_its_plans(ran):
    by_name = {(function, call.count): call for function, call in ran.calls("wrappers")}
    first, second = by_name["Wrapper.run", 1000], by_name["Wrapper.run", 2000]
    plan, init = by_name["Wrapper.plan", 201], by_name["Wrapper.__init__", 1]
    workspace = {"tensor": [16], "dtype": "uint8"}
    planned = {
        "indptr": {"tensor": [3], "dtype": "int64"},
        "indices": {"tensor": [None], "dtype": "int64"},
        "heads": 8,
    }
    assert init.arguments == {"workspace": workspace, "kv_layout": "HND"}
    assert plan.arguments == planned
    q = {"tensor": [4, 8], "dtype": "bfloat16"}
    assert first.arguments == {"q": q, "kv": [{"tensor": [8, 9], "dtype": "float32", "strides": [1, 8]}, None]}
    assert second.arguments == {**first.arguments, "return_lse": True}
    assert first.wrapper == second.wrapper == recording.WrapperState(init=init.arguments, plan=planned)
    assert first.backend == "fa2"
    assert {json.dumps(one) for one in first.samples} == {'{"indptr": {"lengths": [3, 4]}}'}
    lengths = [one["indptr"]["lengths"][1] for one in second.samples]
    assert len(lengths) == recording.MOST_SAMPLES
    assert 60 < statistics.mean(lengths) < 140  # of 1 to 200, each as often: 8 deviations of the mean


def test_no_text_and_no_state_of_generators_is_recorded(ran):
    call = dict(ran.calls("wrappers"))["mm"]
    assert call.count == 50
    assert call.arguments["seed"] == {"object": "int"}
    assert call.arguments["name"] == {"object": "str"}
    assert "secret" not in (ran.folder / "t.jsonl").read_text()


def test_calls_in_a_graph_are_counted_by_its_replays_with_the_plans_since(ran):
    """Capturing a call does not run it."""
    known = {"Wrapper.__init__": 1, "Wrapper.plan": 4, "Wrapper.run": 921, "mm": 310, "attend": 200 * 9, "two": 21}
    assert ran.counts("graphs") == known
    calls = ran.calls("graphs")
    by_name = dict(calls)
    assert by_name["Wrapper.run"].replayed == 921
    assert {one["indptr"]["lengths"][0] for one in by_name["Wrapper.run"].samples} <= {5, 6, 7}
    assert (by_name["mm"].count, by_name["mm"].replayed) == (310, 300)
    attending = [call for function, call in calls if function == "attend"]
    assert {call.count: len(call.samples) for call in attending if not call.samples} == {800: 0}
    filled, with_a_table = sorted((call for call in attending if call.samples), key=lambda call: -call.count)
    assert with_a_table.count == 200
    assert (filled.count, filled.replayed, len(filled.samples)) == (800, 800, recording.MOST_SAMPLES)
    values = [one["seq_lens"]["values"] for one in filled.samples]
    assert all(second == 1000 + first for first, second in values)
    assert 60 < statistics.mean(first for first, _ in values) < 140  # of 1 to 200, each as often


def test_what_is_beyond_a_bound_or_cannot_be_described_is_dropped_and_said(ran):
    assert ran.counts("beyond") == {"mm": 11 + 3}
    assert ran.recording.head.dropped == 1 + 7
    assert "8 calls not recorded" in ran.said
    assert "not all was recorded: beyond.mm: RuntimeError: has none" in ran.said


def test_what_a_recording_has_no_form_for_is_an_object(ran):
    """Garbage behind the lengths of an int64 tensor makes no sense, and what torch traces without values is no call."""
    assert ran.counts("odd") == {"make.locals.inner": 1, "lambda": 1, "attend": 9, "mm": 1}
    calls = [call for function, call in ran.calls("odd") if function == "attend"]
    given = [{k: v for k, v in call.arguments.items() if k not in ("q", "seq_lens")} for call in calls]
    kinds = {"TEXT": None, "PAIR": None, "HUGE": None, "FINE": "ok"}
    for wanted in (
        *({"a": {"enum": f"Kind.{name}", "value": value}} for name, value in kinds.items()),
        {"b": [[[[[[{"object": "list"}]]]]]]},
        {"_gr__e": 3, "_x_y": 4, "_" + "z" * 63: 5},
        {"c": [{"object": kind} for kind in ("int", "float", "str", "bytes", "complex", "Odd")]},
    ):
        assert wanted in given
    assert [3, 0, 0] in [sample["seq_lens"]["values"] for call in calls for sample in call.samples]
    assert [2, None, 8] in [call.arguments["q"]["tensor"] for call in calls]


EVERYWHERE = """
import multiprocessing, os, subprocess, sys, threading
exec(open("calls.py").read())

def work(times):
    for _ in range(times):
        mm(A, A)

if __name__ == "__main__":
    threads = [threading.Thread(target=work, args=(5000,)) for _ in range(4)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    for way, times in (("fork", 30), ("spawn", 400)):
        child = multiprocessing.get_context(way).Process(target=work, args=(times,))
        child.start()
        child.join()
        assert child.exitcode == 0
    text = "exec(open('calls.py').read()); [mm(A, A) for _ in range(1000)]"
    subprocess.run([sys.executable, "-c", text], check=True)
    two(A)
    sys.exit(7)
"""


def test_calls_of_threads_and_processes_are_counted_exactly(tmp_path, monkeypatch, capsys):
    """What an API calls inside is its own."""
    monkeypatch.chdir(tmp_path)
    Path("calls.py").write_text(known_calls.CALLS)
    Path("program.py").write_text(EVERYWHERE)
    assert cli.main(["record", "-o", "t.jsonl", "--", sys.executable, "program.py"]) == 7
    assert f"{20_000 + 30 + 400 + 1000 + 1} calls in t.jsonl, " in capsys.readouterr().err
    made = recording.read(Path("t.jsonl"))
    assert sorted(call.count for call in made.calls) == [1, 400, 20_000 + 30 + 1000]
    assert (made.head.processes, made.head.dropped) == (4, 0)


OVERHEAD = """
import time, timeit
B, kv = torch.empty(64, 32, 128), (torch.empty(9, 2, 16, 8, 128), torch.empty(9, 2, 16, 8, 128))
wrapper = Wrapper(A)
wrapper.plan(torch.tensor([0, 3, 7]), torch.arange(7), 8)
cases = {
    "mm": (lambda: mm(B, B, out=B, scale=0.5), lambda: mm.__wrapped__(B, B, out=B, scale=0.5)),
    "run": (lambda: wrapper.run(B, kv), lambda: Wrapper.run.__wrapped__(wrapper, B, kv)),
}
for name, (with_it, without) in cases.items():
    took = [min(timeit.repeat(one, timer=time.thread_time, number=2000, repeat=9)) for one in (with_it, without)]
    note(name, str((took[0] - took[1]) / 2000 * 1e6).encode())
"""


@pytest.mark.more
def test_a_call_that_was_seen_before_costs_microseconds(tmp_path, monkeypatch):
    """Of its own thread: 5 us are promised, and three times that is for a core that others share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(known_calls, "CALLS", known_calls.CALLS.replace("return mm(q, q)", "pass"))
    assert known_calls.recorded(tmp_path, {"overhead": OVERHEAD}).status("overhead") == 0
    assert float(Path("overhead/mm").read_text()) < 15
    assert float(Path("overhead/run").read_text()) < 15
