"""The file of a recording: what is written is read back, and whatever else a file holds is refused with its line."""

import json
import re

import pytest
from mutations import as_lines, said_of

from pytest_flashinfer_perf.extensions.traffic import recording
from pytest_flashinfer_perf.extensions.traffic.recording import (
    Head,
    RecordedCall,
    Recording,
    RecordingError,
    WrapperState,
)

TENSOR = {"tensor": [64, 32, 128], "dtype": "bfloat16"}
RUN = RecordedCall(
    api="flashinfer.decode.BatchDecodeWithPagedKVCacheWrapper.run",
    arguments={
        "q": TENSOR,
        "paged_kv_cache": [{**TENSOR, "strides": [4096, 256, 1]}, None],
        "scale": 0.125,
        "return_lse": True,
    },
    wrapper=WrapperState(
        init={"kv_layout": "NHD", "workspace": {"tensor": [1024], "dtype": "uint8"}},
        plan={
            "indptr": {"tensor": [3], "dtype": "int32"},
            "indices": {"tensor": [None], "dtype": "int32"},
            "q_data_type": {"dtype": "float16"},
        },
    ),
    backend="fa2",
    count=96_000,
    replayed=90_000,
    samples=({"indptr": {"lengths": [17, 33]}}, {}),
)
ROUTED = RecordedCall(
    api="flashinfer.fused_moe.core.cutlass_fused_moe",
    arguments={
        "token_selected_experts": {"tensor": [4, 2], "dtype": "int32"},
        "routing": {"enum": "RoutingMethodType.Renormalize", "value": 1},
        "tune": {"object": "Config"},
    },
    count=3,
    samples=({"token_selected_experts": {"counts": [4, 0, 4]}},),
)
KEPT = Recording(
    Head(
        traffic=recording.VERSION,
        flashinfer="0.7.2.post1",
        torch="2.11.0+cu130",
        devices=("NVIDIA H200",),
        seconds=61.2,
        processes=3,
        calls=96_003,
    ),
    (RUN, ROUTED),
)
LINES = [json.loads(line) for line in recording.as_lines(KEPT)]


def test_what_is_written_is_read_back(tmp_path):
    recording.write(tmp_path / "t.jsonl", KEPT)
    again = recording.read(tmp_path / "t.jsonl")
    assert list(recording.as_lines(again)) == list(recording.as_lines(KEPT))
    assert again.calls[0].wrapper == RUN.wrapper
    assert recording.is_recording(tmp_path / "t.jsonl")
    assert not recording.is_recording(tmp_path)


BROKEN = {
    "2: samples[0]: 'q2' is no argument of the call": (1, ("samples", 0, "q2"), {"lengths": [1]}),
    "2: samples[0]: indptr must have one of": (1, ("samples", 0, "indptr"), {"tokens": [1]}),
    "2: arguments: scale must be a short word": (1, ("arguments", "scale"), "rm -rf /"),
    "2: arguments: q must be from 0": (1, ("arguments", "q", "tensor", 0), -1),
    "2: arguments: q must have a stride for each": (1, ("arguments", "q", "strides"), [1]),
    "2: arguments: q must be a number, a word, a list": (1, ("arguments", "q", "data"), [1.0]),
    "2: replayed is 96001, more than count": (1, ("replayed",), 96_001),
    "2: api must be a module and a name": (1, ("api",), "os.system('x')"),
    "2: wrapper: 'code' is no member": (1, ("wrapper", "code"), "x"),
    "1: Head: traffic must be one of 1, got 2": (0, ("traffic",), 2),
    "1: Head: traffic must be one of 1, got True": (0, ("traffic",), True),
    "1: Head: traffic must be one of 1, got 1.0": (0, ("traffic",), 1.0),
    "1: calls is 5, the lines have 96003": (0, ("calls",), 5),
    "3: 'eval' is no member": (2, ("eval",), "x"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_what_does_not_belong_there_is_refused_with_line_and_reason(tmp_path, reason):
    number, places, value = BROKEN[reason]
    lines = json.loads(json.dumps(LINES))
    holder = lines[number]
    for place in places[:-1]:
        holder = holder[place]
    holder[places[-1]] = value
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(RecordingError, match=f"^{re.escape(f'{tmp_path}/t.jsonl:{reason}')}"):
        recording.read(tmp_path / "t.jsonl")


def test_2000_strange_files_are_read_or_refused_with_one_sentence(tmp_path):
    assert len(said_of(tmp_path / "t.jsonl", recording.read, as_lines, LINES, 2000)) > 100


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": is empty"),
        ("{" * 100_000, ":1: is"),
        ('{"traffic": 1' + " " * (recording.LONGEST_LINE + 1), ":1: a line has at most"),
        ('{"traffic": NaN}', ":1: is no JSON: NaN"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, text, reason):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(RecordingError, match=f"^{re.escape(f'{tmp_path}/t.jsonl{reason}')}"):
        recording.read(tmp_path / "t.jsonl")
