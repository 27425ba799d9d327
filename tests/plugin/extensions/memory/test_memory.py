"""Memory in rows, in the terminal, in the gate, in `doctor` and in docs/memory.md."""

import re
from dataclasses import fields as fields_of
from pathlib import Path

import pytest
from made import row, run, typed

from pytest_flashinfer_perf.extensions.doctor import doctor_command
from pytest_flashinfer_perf.extensions.memory.memory import NOTHING, CallMemory, Repeated, lines
from pytest_flashinfer_perf.extensions.memory.memory_gate import QUANTITY, MemoryLimits
from pytest_flashinfer_perf.gate import thresholds, words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.settings import project_file

KIB, MIB = 1 << 10, 1 << 20
DOCUMENT = (Path(__file__).parents[4] / "docs" / "memory.md").read_text()


def memory(call=34 * MIB, *, left=0, plan=None, plan_left=0, held=512 * MIB, **seen):
    planned = None if plan is None else Repeated(plan, 50, plan_left)
    return fields.written(CallMemory(Repeated(call, 250, left), planned, {"workspace": held}, **seen))


def judged(before, after, asked):
    rules = Rules(Thresholds((("*", asked),)), quantities=(QUANTITY,))
    judgement = judge([run(row(memory=before))], [run(row(memory=after))], rules)
    [one] = judgement.cases
    return one, judgement.exit_code


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        (memory(0), memory(1 * MIB), []),
        (memory(0), memory(1 * MIB + 1), ["a call takes 1 MiB, 1 MiB more"]),
        (memory(held=512 * MIB), memory(held=640 * MIB), ["it holds 640 MiB, 128 MiB more"]),
        (memory(plan=8 * MIB), memory(plan=16 * MIB), ["a plan takes 16 MiB, 8 MiB more"]),
        (memory(), memory(left=250 * KIB), ["each call leaves 1 KiB, 1 KiB more"]),
        (memory(left=250 * KIB), memory(left=250 * KIB), []),
        (memory(plan=0), memory(plan=0, plan_left=50), ["each plan leaves 1 B, 1 B more"]),
    ],
)
def test_one_byte_more_than_is_allowed_is_too_much_and_a_leak_is_never_allowed(before, after, broken):
    one, code = judged(before, after, {"more_memory": 1.0 * MIB})
    assert [found.sentence for found in one.broken] == [f"more_memory = 1 MiB: {said}" for said in broken]
    assert (one.verdict.value, code) == ("SAME", int(bool(broken)))


@pytest.mark.parametrize("unknown", [None, memory(None)])
def test_what_was_not_counted_is_no_pass(unknown):
    one, code = judged(memory(), unknown, {"more_memory": 0.0})
    assert (one.verdict.value, one.reason, code) == ("INVALID", "no-figure", 2)
    assert "with --perf-memory" in " ".join(words.remarks(one)) + one.sentence
    assert judged(memory(), unknown, {})[1] == 0


def test_the_terminal_has_a_line_for_each_case_and_one_for_what_should_not_be():
    strange = memory(left=250 * KIB, plan=8 * MIB, plan_left=50 * KIB, grown=("wrapper._buffer",))
    strange |= {"device_allocations": 1, "outside_bytes": 2 * MIB, "resident_bytes": 3 << 30}
    known = [typed(memory=strange, backend="fa3"), typed(memory=memory(None), backend="trtllm-native")]
    shown = list(lines([*known, typed(memory=None)]))
    assert "  fa3                         34 MiB   512 MiB     8 MiB     1 KiB     3 GiB" in shown
    assert "  trtllm-native                    -   512 MiB         -       0 B         -" in shown
    assert [line.strip() for line in shown if line.startswith("      ") and "held" not in line] == [
        "leak: 1 KiB a call, in 250 calls",
        "leak: 1 KiB a plan, in 50 plans",
        "grew: wrapper._buffer",
        "torch asked the driver for memory 1 time",
        "past torch: 2 MiB of the device",
    ]
    assert all(len(line) <= 80 for line in shown)
    assert list(lines([typed(memory=None)])) == [NOTHING]


OWN = """
import torch

def test_own(perf):
    workspace = torch.zeros(1000)
    perf.time(lambda x: x + workspace, torch.ones(1000))
"""


def test_a_row_on_a_cpu_says_what_is_held_and_what_cannot_be_counted(session):
    done = session("--perf-memory", test_own=OWN)
    extra = done["test_own"]["extra_info"]
    assert extra["memory"]["held"] == {"workspace": 4000}
    assert extra["memory"]["call"]["peak_bytes"] is None
    assert extra["memory"]["resident_bytes"] > MIB
    assert any("torch counts no memory of cpu" in note for note in extra["notes"])
    done.says("*what memory a call takes, beside its arguments*", "*3.906 KiB*")
    assert session(test_own=OWN)["test_own"]["extra_info"]["memory"] is None


def test_doctor_says_whether_memory_is_counted(cpu):
    facts = doctor_command.facts_about(cpu, [], {})
    assert facts["beside"]["memory"].startswith("torch counts no memory of cpu")
    said = " ".join(" ".join(doctor_command.lines({"no_gpu": "none", **facts})).split())
    assert "memory: no, torch counts no memory of cpu" in said


def test_every_field_is_documented():
    table = DOCUMENT.partition("## What is written")[2].partition("\n## ")[0]
    first = re.findall(r"^\|([^|]+)\|", table, re.MULTILINE)
    assert {name for column in first for name in re.findall(r"`(\w+)`", column)} == {
        *(field.name for field in fields_of(CallMemory)),
        *(field.name for field in fields_of(Repeated)),
    }


def settings(tmp_path, text):
    (tmp_path / "flashinfer-perf.toml").write_text(text)
    return thresholds.read(project_file.find(tmp_path), [MemoryLimits])


def test_the_thresholds_of_the_document_are_understood_and_strange_ones_refused(tmp_path):
    read = settings(tmp_path, re.search(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)[1])
    assert read.named(["attention/decode"]).of(MemoryLimits) == MemoryLimits(more_memory=1.0 * MIB)
    for strange in ("1", '"1 MB"', '"-1 MiB"', "true"):
        with pytest.raises(Exception, match=r'more_memory: must be a size, as in "1 MiB" or "0 B", got'):
            settings(tmp_path, f'[thresholds]\n"*" = {{ more_memory = {strange} }}')
