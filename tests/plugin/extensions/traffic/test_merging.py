"""Pieces of processes become one recording, and what a recording cannot have is counted and said."""

import json

import pytest

from pytest_flashinfer_perf.extensions.traffic import merging, pieces, recording
from pytest_flashinfer_perf.extensions.traffic.recording import RecordingError

CALL = {"id": 1, "call": {"api": "a.b", "arguments": {}}, "counts": [5, 0], "samples": []}
OTHER = {"id": 2, "call": {"api": "a.c", "arguments": {"x": 1}}, "counts": [3, 1], "samples": []}
TIMES = {"began": 5.0, "ended": 7.5, "fault": "", "dropped": 0}
PROCESS = {"process": {**TIMES, "flashinfer": "0.7", "torch": "2", "devices": []}}
END = pieces.ENDED.decode()


def put(folder, *lines, name="1-1.jsonl"):
    text = "".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines)
    (folder / name).write_text(text)
    return folder


def test_pieces_become_one_recording(tmp_path):
    later = {"process": {**PROCESS["process"], "began": 4.0, "fault": "it hurt", "dropped": 4}}
    put(tmp_path, CALL, PROCESS, {"id": 1, "counts": [9, 0], "samples": []}, END)
    put(tmp_path, CALL, OTHER, later, END, name="2-1.jsonl")
    made = merging.of_folder(tmp_path)
    assert {call.api: call.count for call in made.recording.calls} == {"a.b": 14, "a.c": 3}
    head = made.recording.head
    assert (head.processes, head.calls, head.dropped, head.seconds, head.flashinfer) == (2, 17, 4, 3.5, "0.7")
    assert made.faults == ("it hurt",)


def test_a_line_that_a_killed_process_did_not_finish_is_none(tmp_path):
    made = merging.of_folder(put(tmp_path, CALL, '{"id": 1, "counts": [9'))
    assert made.recording.calls[0].count == 5
    assert made.faults == ("process 1 was killed or could not write: its last calls may be missing",)


@pytest.mark.parametrize("line", ['{"id": 3, "counts": [1, 0]}', '{"id": 1}', "5", "{", "\udcff"])
def test_a_line_that_is_none_is_named(tmp_path, line):
    put(tmp_path, CALL)
    with (tmp_path / "1-1.jsonl").open("ab") as file:
        file.write(f"{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(RecordingError, match=r"1-1\.jsonl:2: is no line of a recorded process: "):
        merging.of_folder(tmp_path)


@pytest.mark.parametrize("arguments", [{"x y": 1}, {"x": {"object": "a b"}}, {"x": 1 << 63}, {"x": [[[[[[[1]]]]]]]}])
def test_a_call_that_a_recording_cannot_have_is_counted_and_named(tmp_path, arguments):
    refused = {**OTHER, "call": {"api": "a.c", "arguments": arguments}}
    made = merging.of_folder(put(tmp_path, CALL, PROCESS, refused, END))
    assert [call.api for call in made.recording.calls] == ["a.b"]
    assert made.recording.head.dropped == 3
    assert made.faults[0].startswith("3 calls of a.c: arguments: ")
    recording.write(tmp_path / "t.jsonl", made.recording)
    assert recording.read(tmp_path / "t.jsonl") == made.recording
