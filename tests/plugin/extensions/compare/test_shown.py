"""What a comparison shows, writes and exits with: `flashinfer-perf compare` on files."""

import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import plain, row, run, saved

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.compare import document, markdown, pytest_perf_judged
from pytest_flashinfer_perf.gate import match, words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules

NEW_KERNEL = {"kernels": ["fmha_v3", "_Z" + "long" * 90 + "E0"]}
BEFORE = (
    row("decode/a-fa3", us=497.1, bound="compute", cycles=9e5, sm_ghz=1.8, kernels=["fmha_v2"], tflops=400.0),
    row("decode/b-fa3", us=33.4),
    row("decode/c-fa3", us=50.0),
    row("decode/d-fa3", us=60.0),
    row("decode/e-fa3", us=70.0),
    row("decode/f-fa3", us=80.0, bound="compute", cycles=144e3, sm_ghz=1.8),
    row("decode/h-fa3", us=10.0),
)
AFTER = (
    row("decode/a-fa3", us=550.0, bound="compute", cycles=10e5, sm_ghz=1.8, tflops=360.0, **NEW_KERNEL),
    row("decode/b-fa3", us=33.3),
    row("decode/c-fa3", us=40.0, status="noisy", cycles=None),
    row("decode/f-fa3", us=95.0, bound="compute", cycles=144e3, sm_ghz=1.5),
    row("decode/g-fa3|<script>", us=5.0),
    row("decode/h-fa3", us=9.0, instrument="events"),
)
GONE = [{"case": "decode/d-fa3", "outcome": "skipped", "reason": "fa3 needs compute capability 9.0"}]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    saved(tmp_path / "base.json", *BEFORE, commit="0123456789abcdef")
    other = {"driver": "580", "flashinfer": "0.7.3", "torch": "2.11"}
    saved(tmp_path / "head.json", *AFTER, unmeasured=GONE, machine=other)
    saved(tmp_path / "same.json", *BEFORE)
    return tmp_path


def compare(*arguments):
    return cli.main(["compare", "--base", "base.json", *arguments])


def test_the_table_says_it_to_people(files, capsys):
    (files / "flashinfer-perf.toml").write_text(
        '[thresholds]\n"*a-fa3" = { min_tflops = 380 }\n"gemm*" = {floor_us=1}\n'
    )
    assert compare("--head", "head.json") == 1
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    told = " ".join(shown.split())
    for sentence in (
        "baseline base.json (1 process, 2026-11-20 12:00 UTC, commit 0123456789), this run head.json",
        "other libraries: flashinfer 0.7.2 -> 0.7.3",
        "[thresholds] 'gemm*' fits no case",
        "SLOWER (1) decode/a-fa3 497.1 us -> 550.0 us: cycles +11.11 %, time +10.64 % at least +",
        "slower: beyond the threshold in cycles",
        "broken: min_tflops = 380: it reaches 360",
        "now runs another kernel: fmha_v2 -> fmha_v3,",
        "ngE0",
        "decode/h-fa3 instrument: instrument: cupti in the baseline, events here",
        "MISSING (2) decode/d-fa3 skipped: in the baseline, not in this run: fa3 needs compute capability 9.0",
        "decode/e-fa3 vanished: in the baseline, not in this run: it is not mentioned",
        "decode/f-fa3 80.00 us -> 95.00 us: cycles +0.00 %, time +18.75 %",
        "SM clock 1.80 -> 1.50 GHz",
        "FASTER (1) decode/c-fa3",
        "noisy: the spread stayed above 5 %",
        "SAME (1) decode/b-fa3 -0.30 %, detects from +",
        "NEW (1) decode/g-fa3|<script>",
        "1 SLOWER, 1 INVALID, 2 MISSING, 1 AMBIGUOUS, 1 FASTER, 1 SAME, 1 NEW: something got worse",
    ):
        assert sentence in told, sentence


def test_noise_that_is_assumed_is_called_so_and_by_whose_fault():
    older, newer = row("decode/a-fa3", us=100, placements=[]), row("decode/a-fa3", us=101)
    other = row("decode/b-fa3")
    judgement = judge([run(older, other, source="old")], [run(newer, other, source="new")], Rules())
    [note] = [note for note in words.notes(judgement) if "noise" in note]
    assert note.startswith("the noise of 1 of 2 cases is assumed, not measured: fewer than 3 placements in rows of")
    assert "rows of the baseline (a plain benchmark" in note
    assert {judged.name: judged.primary.noise.source for judged in judgement.cases} == {
        "decode/a-fa3": "assumed",
        "decode/b-fa3": "placements",
    }


def test_exit_codes_of_the_command(files, capsys):
    assert compare("--head", "same.json") == 0
    assert "7 SAME: no slowdown was found" in capsys.readouterr().out
    saved(files / "few.json", *BEFORE[:3])
    assert compare("--head", "few.json") == 2
    assert compare("--head", "few.json", "--perf-gate-allow=missing") == 0
    assert "allowed" in capsys.readouterr().out
    saved(files / "other.json", row("decode/other"))
    assert compare("--head", "other.json", "--perf-gate-allow=missing") == 2
    assert "REFUSED: nothing was compared" in capsys.readouterr().out


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--head", "same.json", "head.json", "--paired"),
            "--paired needs as many files of --base as of --head, got 1 and 2",
        ),
        (("--head", "same.json", "./same.json"), "same.json is the same run as same.json: a process counts once"),
        (("base.json", "--head", "same.json"), "base.json is the same run as base.json: a process counts once"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(capsys, arguments, sentence):
    assert compare(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("flashinfer-perf compare: ")
    assert sentence in error


def test_several_files_and_pairs_of_them(files, capsys):
    saved(files / "same.json", *BEFORE, when="2026-11-20T13:00:00+00:00")
    assert (
        cli.main(["compare", "--base", "base.json", "same.json", "--head", "same.json", "base.json", "--paired"]) == 0
    )
    assert "base.json and 1 more (2 processes" in " ".join(capsys.readouterr().out.split())


def test_files_of_verdicts(files):
    compare("--head", "head.json", "--markdown", "out/v.md", "--json", "v.json")
    written = json.loads((files / "v.json").read_text())
    assert written["exit_code"] == 1
    [slow] = [case for case in written["cases"] if case["verdict"] == "SLOWER"]
    assert slow["judged_in"] == "cycles"
    assert slow["effects"]["cycles"]["noise"]["source"] == "placements"
    text = (files / "out" / "v.md").read_text()
    assert "| SLOWER | decode/a-fa3 | 497.1 us -&gt; 550.0 us | cycles +11.11 %, time +10.64 % |" in text
    assert "decode/g-fa3\\|&lt;script&gt;" in text
    assert "<details><summary>2 more, same or new</summary>" in text


def test_a_refused_comparison_says_so_everywhere():
    judgement = judge([run(row("a"))], [run(row("b"))], Rules(allowed=match.allowed("missing")))
    assert "**Refused**: nothing was compared" in markdown.text(judgement)
    assert json.loads(document.text(judgement))["refusals"] == list(words.problems(judgement))


FAILED = [{"case": "decode/w-fa3", "outcome": "failed", "reason": "Failed: wrong answer: output 0"}]


def test_a_failure_without_a_row_is_shown_everywhere(files, capsys):
    saved(files / "wrong.json", *BEFORE, unmeasured=FAILED)
    assert compare("--head", "wrong.json", "--json", "v.json", "--markdown", "v.md") == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "INVALID (1) decode/w-fa3 failed: wrong.json: Failed: wrong answer: output 0 " in shown
    assert shown.endswith("1 INVALID, 7 SAME: something got worse")
    [invalid] = [case for case in json.loads((files / "v.json").read_text())["cases"] if case["verdict"] == "INVALID"]
    assert (invalid["case"], invalid["reason"], invalid["bound"]) == ("decode/w-fa3", "failed", None)
    assert "| INVALID | decode/w-fa3 |" in (files / "v.md").read_text()


def test_samples_that_scatter_without_end_are_shown_all_the_same():
    wild = plain()
    wild["stats"]["iqr"] = 5000 * wild["stats"]["median"]
    judgement = judge([run(plain())], [run(wild)], Rules())
    assert "likely between -100.00 % and over +9900 %" in "\n".join(words.lines(judgement))


def test_github_gets_a_summary_and_annotations(files, monkeypatch, capsys):
    summary = files / "summary.md"
    summary.write_text("before\n")
    assert list(pytest_perf_judged(judge([run(row())], [run(row())], Rules()))) == []
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    compare("--head", "head.json")
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert [note.partition(" ")[0] for note in notes] == ["::error"] * 4 + ["::warning"]
    assert notes[-1].startswith("::warning title=1 AMBIGUOUS::too noisy to judge: decode/")
    assert notes[0].startswith("::error title=SLOWER decode/a-fa3::497.1 us -> 550.0 us: cycles +11.11 %25, time")
    assert summary.read_text().startswith("before\n### flashinfer-perf: 3 of 7 judged, 1 SLOWER")
    saved(files / "other.json", row("decode/other"))
    compare("--head", "other.json", "--perf-gate-allow=missing")
    assert "::error title=refused::nothing was compared" in capsys.readouterr().out


def test_a_summary_that_cannot_be_written_costs_no_verdict(files, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(files / "head.json" / "summary.md"))
    assert compare("--head", "head.json") == 1
    shown = capsys.readouterr().out
    assert "::warning title=no GITHUB_STEP_SUMMARY::[Errno 20] Not a directory: " in shown
    assert "::error title=SLOWER decode/a-fa3::" in shown


names = st.text(min_size=1, max_size=90)
medians = st.one_of(st.none(), st.floats(0.5, 1e7))


@given(st.lists(st.tuples(names, medians, medians), max_size=6), st.booleans())
def test_whatever_cases_are_called_all_of_it_can_be_written(cases, strict):
    base = run(*(row(name, us=before) for name, before, _ in cases))
    head = run(*(row(name, us=after) for name, _, after in cases))
    judgement = judge([base], [head], Rules(Thresholds(), strict=strict))
    json.loads(document.text(judgement))
    assert markdown.text(judgement).count("\n| ") <= len(cases) + 2
    assert list(words.lines(judgement))


def test_a_summary_that_github_would_drop_is_cut_at_a_line_and_its_folds_are_closed():
    lines = [f"| case {nth} é |" for nth in range(1000)]
    text = "\n".join([*lines[:10], "<details><summary>990 more</summary>", *lines[10:], "</details>"])
    assert markdown.cut(text, len(text.encode())) == text
    shown = markdown.cut(text, 5_000)
    assert len(shown.encode()) < 5_100
    assert shown.endswith("|\n\n</details>\n\nThe rest is in the files.\n")


HOSTILE = "x\n::error::pwn\r\x1b]0;title\x07\u2028##[error]pwn ##vso[task.setvariable]a"
FORGED = re.compile(r"^\s*::\w|##\[|##vso\[|[\x00-\x08\x0b-\x1f\u2028]", re.MULTILINE)


def test_annotations_are_commands_of_ours_alone(files, monkeypatch, capsys):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(files / "summary.md"))
    left = [{"case": f"{HOSTILE} 2", "outcome": "failed", "reason": HOSTILE}]
    for name, us in (("base.json", 100), ("b.json", 101)):
        saved(files / name, row(HOSTILE, us=us), unmeasured=left, machine={"driver": HOSTILE}, commit=HOSTILE)
    assert compare("--head", "b.json") == 1
    commands = [line for line in capsys.readouterr().out.splitlines() if re.match(r"\s*::", line)]
    assert commands
    assert all(re.match("::(error|warning) title=", line) and not FORGED.search(line[2:]) for line in commands)
    assert not FORGED.search((files / "summary.md").read_text())


@pytest.mark.parametrize(("closed", "code"), [(">&-", 1), ("2>&-", 1), (">&- 2>&-", 1), ("2>&- --perf-config=none", 2)])
def test_an_output_that_is_closed_changes_no_exit_code(tmp_path, closed, code):
    saved(tmp_path / "a", row(us=100))
    saved(tmp_path / "b", row(us=150))
    words = f"{sys.executable} -m pytest_flashinfer_perf compare --base a --head b {closed}"
    assert subprocess.run(words, shell=True, cwd=tmp_path, check=False).returncode == code


def test_a_reader_that_closes_the_pipe_changes_neither_files_nor_exit_code(tmp_path):
    sides = ([row(f"decode/{i}-fa3", us=us) for i in range(1000)] for us in (100, 150))
    base, head = (saved(tmp_path / f"{nth}.json", *side) for nth, side in enumerate(sides))
    words = [sys.executable, "-m", "pytest_flashinfer_perf", "compare", "--base", base, "--head", head, "--json", "v"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
    assert len(json.loads((tmp_path / "v").read_text())["cases"]) == 1000


@pytest.mark.usefixtures("files")
def test_a_fault_of_this_package_is_no_verdict(monkeypatch, capsys):
    monkeypatch.setattr("textwrap.wrap", lambda *_, **__: 1 // 0)
    assert compare("--head", "same.json") == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_folder_that_cannot_be_searched_is_one_sentence(capsys):
    """As that of a process that has ended, below /proc."""
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert cli.main(["compare", "--base", f"/proc/{ended.pid}", "--head", "/proc/version"]) == 2
    assert f"/proc/{ended.pid}: cannot be searched for runs: " in capsys.readouterr().err
    ended.wait()
