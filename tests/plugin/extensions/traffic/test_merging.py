"""Pieces, which may be anybody's: what cannot be read or kept of them is left out, counted and said."""

import json
import os
import random

import pytest
from mutations import as_lines

from pytest_flashinfer_perf.extensions.traffic import merging, pieces, recording
from pytest_flashinfer_perf.extensions.traffic.recording import RecordingError

CALL = {"id": 1, "call": {"api": "a.b", "arguments": {}}, "counts": [5, 0]}
OTHER = {"id": 2, "call": {"api": "a.c", "arguments": {"x": 1}}, "counts": [3, 1], "samples": []}
PROCESS = {"began": 5.0, "ended": 7.5, "fault": "", "raised": {"a.d": 2}, "flashinfer": "0.7", "torch": "2"}
PROCESS["devices"] = []
GOOD = [CALL, PROCESS]


def put(folder, *lines, name="1-1.jsonl"):
    text = "".join(line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines)
    (folder / name).write_text(text, "utf-8", "surrogatepass")
    return folder


def test_pieces_become_one_recording(tmp_path):
    put(tmp_path, pieces.head(4, "it was full").decode(), *GOOD, {"id": 1, "counts": [9, 0]})
    put(tmp_path, CALL, OTHER, {**PROCESS, "began": 4.0, "fault": "it hurt"}, "\0" * 100, name="2-1.jsonl")
    made = merging.of_folder(tmp_path)
    assert {call.api: call.count for call in made.recording.calls} == {"a.b": 14, "a.c": 3}
    head = made.recording.head
    assert (head.processes, head.calls, head.dropped, head.seconds, head.flashinfer) == (2, 17, 4, 3.5, "0.7")
    assert made.raised == {"a.d": 4}
    assert made.faults == ("it hurt", "4 calls could not be written: it was full")


def test_a_line_that_a_killed_process_did_not_finish_is_none(tmp_path):
    made = merging.of_folder(put(tmp_path, CALL, '{"id": 1, "counts": [9'))
    assert (made.recording.calls[0].count, made.faults) == (5, ())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ({"id": 1, "counts": ["x", 0]}, "the line: counts[0] must be a whole number"),
        ({"id": 1, "counts": [-1, 0]}, "a count must be from 0"),
        ({"id": 1, "counts": [1 << 50, 0]}, "a count must be from 0"),
        ({"lost": -1}, "a count must be from 0"),
        ({"id": 3, "counts": [1, 0]}, "no line before it has the call 3"),
        ({"id": 3, "call": {"api": "a.b"}}, "the line: call lacks arguments"),
        ({"id": 1, "samples": [[0, 1]]}, "the line: samples[0][1] must be an object"),
        ({"kernels": {"k": [1]}}, "the line: kernels: k must be a list"),
        ({"began": "x"}, "the line: began must be a number"),
        ('{"began": NaN}\n', "NaN is no number of JSON"),
        ("{" * 100_000 + "\n", "is no line of a recorded process"),
        ('"' + "x" * (1 << 24) + '"\n', "is no line of a recorded process"),
        ("5\n", "it must be an object"),
        ("\ud800\n", "is no line of a recorded process"),
    ],
)
def test_a_line_that_is_none_is_left_out_and_named(tmp_path, line, sentence):
    made = merging.of_folder(put(tmp_path, *GOOD, line, OTHER))
    assert {call.api: call.count for call in made.recording.calls} == {"a.b": 5, "a.c": 3}
    assert made.faults[0].startswith(f"{tmp_path}/1-1.jsonl:3: is no line of a recorded process: ")
    assert sentence in made.faults[0]
    assert len(made.faults[0]) <= 400
    (tmp_path / "1-1.jsonl").unlink()
    with pytest.raises(RecordingError, match="is no line of a recorded process"):
        merging.of_folder(put(tmp_path, line))


@pytest.mark.parametrize("arguments", [{"x y": 1}, {"x": {"object": "a b"}}, {"x": 1 << 63}, {"x": [[[[[[[1]]]]]]]}])
def test_a_call_that_a_recording_cannot_have_is_counted_and_named(tmp_path, arguments):
    refused = {**OTHER, "call": {"api": "a.c", "arguments": arguments}}
    made = merging.of_folder(put(tmp_path, *GOOD, refused, {"kernels": {"": [1, 0.5], "k": [2, 0.5]}}))
    assert [call.api for call in made.recording.calls] == ["a.b"]
    assert made.recording.head.dropped == 3
    assert made.faults[0].startswith("3 calls of a.c: arguments: ")
    assert made.faults[1].startswith("the time of a kernel: kernel must be a name")
    recording.write(tmp_path / "t.jsonl", made.recording)
    assert recording.read(tmp_path / "t.jsonl") == made.recording


def test_what_is_no_file_is_not_opened(tmp_path):
    """Neither a FIFO, at which it would wait, nor a device that does not end."""
    os.mkfifo(tmp_path / "1.jsonl")
    (tmp_path / "2.jsonl").symlink_to("/dev/zero")
    made = merging.of_folder(put(tmp_path, *GOOD, name="3-1.jsonl"))
    assert made.faults == (f"{tmp_path}/1.jsonl: is no file", f"{tmp_path}/2.jsonl: is no file")
    assert made.recording.head.calls == 5


def test_a_recording_has_as_many_lines_as_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "MOST_LINES", 2)
    made = merging.of_folder(put(tmp_path, *GOOD, OTHER))
    assert ([call.api for call in made.recording.calls], made.recording.head.dropped) == (["a.b"], 3)
    assert "3 calls of a.c: a recording has no more lines" in made.faults


def test_strange_pieces_are_read_or_refused_with_sentences(tmp_path):
    rand, said = random.Random(7), set()
    lines = [json.loads(pieces.head(1)), CALL, OTHER, PROCESS, {"kernels": {"k": [1, 0.5]}}]
    for _ in range(500):
        put(tmp_path, as_lines(rand, lines))
        try:
            made = merging.of_folder(tmp_path)
            recording.write(tmp_path / "recording", made.recording)
            said.update(made.faults)
        except RecordingError as error:
            said.add(str(error))
    assert len(said) > 50
    assert all("\n" not in one for one in said)
