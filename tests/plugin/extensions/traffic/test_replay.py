"""Sessions that measure a recording: its cases by `torch` on a CPU, their order, their share, their weighted sum."""

import re
import shlex

import pytest
from recorded_traffic import CALLS, product, written
from reports import document, write
from step_runs import recorded_of, rows

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.models.step import plan_of
from pytest_flashinfer_perf.extensions.traffic import replay
from pytest_flashinfer_perf.rows import run_file

ON_CPU = ("--import-mode=importlib", "--perf-backends=torch")
DECODE = "BatchDecodeWithPagedKVCacheWrapper"
DECODING = f"{DECODE}.run"


@pytest.fixture
def run(session, pytester):
    """Pytest on a recording, named as a person names it."""

    def run(*arguments, calls=CALLS, **files):
        written(pytester.path / "traffic.jsonl", calls)
        return session("traffic.jsonl", *ON_CPU, *arguments, **files)

    return run


def test_a_recording_is_measured_and_summed(run):
    """Each case lasts 1 ms: 600 of 1,000 calls in 2 s, half of which are decoding."""
    done = run()
    assert (done.code, done.outcomes) == (0, {"passed": 5, "skipped": 1})
    assert "traffic.jsonl: 5 cases for 60.0% of the calls, " in done.out
    assert re.search(r"fused_everything, 40\.0% of the calls: no routine\s+calls it", done.out)
    found = run_file.read(done.folder / "run.json")
    assert {kernel.cases[0]: kernel.count for kernel in plan_of(found).kernels if kernel.cases}.keys() == {
        f"{row.identity.routine}/{row.identity.shape}" for row in found.ours
    }
    assert "sum 600.0 ms of time on a CPU, +- " in done.out
    assert "300.0 ms of time on a CPU for each second that was recorded" in done.out
    done.says(f"{DECODING} *300 * 2 *50.0%", "mm_bf16 *260 * 2 *43.3%", "*PrefillWithPaged* *40 * 1 *6.7%")


@pytest.mark.parametrize(
    ("words", "outcomes", "line"),
    [
        (("-k", "mm_bf16"), {"passed": 2, "deselected": 4}, "sum "),
        (("-k", f"{DECODE} and not lens9"), {"passed": 1, "deselected": 5}, "sum "),
    ],
)
def test_a_part_of_it(run, words, outcomes, line):
    done = run(*words)
    assert done.outcomes == outcomes
    assert line in done.out


def test_the_heaviest_come_first_and_each_can_be_run_again(run, session):
    again = [shlex.split(row["extra_info"]["repro"])[1] for row in run("-k", "lens9").rows.values()]
    collected = [line for line in run("--collect-only", "-q").result.outlines if "[" in line]
    assert [line.partition("::")[2].partition("[")[0] for line in collected][:3] == [DECODE, DECODE, "mm_bf16"]
    assert collected[-1].endswith("::without-a-case[fused_everything]")
    assert all("--actual_seq_lens_kv" in one for one in again)
    assert session(again[0], *ON_CPU).outcomes["passed"] == 1


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("", ("second.jsonl",), "one recording at a time"),
        ("", ("--perf-model=llama-3.1-70b",), "a recording and --perf-model each have a sum"),
        ("", ("--perf-backends=nope",), "unknown name 'nope'"),
        ('{"kernel": 3}\n', (), "traffic.jsonl:"),
    ],
)
def test_what_cannot_be_is_one_sentence(session, pytester, text, words, sentence):
    for name in ("traffic.jsonl", "second.jsonl"):
        path = written(pytester.path / name, [product(4, count=1)])
        path.write_text(path.read_text() + text)
    done = session("traffic.jsonl", *ON_CPU, *words)
    assert done.code != 0
    assert sentence in done.out + done.err
    assert "Traceback" not in done.out + done.err
    assert "INTERNALERROR" not in done.out + done.err


def test_bench_runs_the_recording_alone(tmp_path):
    """And not the suite beside it."""
    path = str(written(tmp_path / "traffic.jsonl", [product(4, count=5)]))
    words = cli.of_suite([path])
    assert words[-1] == path
    assert words[0].startswith("--rootdir=")
    assert not cli.of_suite(["-q"])[0].startswith("-")


# The verdict of the sum, from files of runs whose times are known.

TIMES = {DECODING: 40.0, "mm_bf16": 20.0, "BatchPrefillWithPagedKVCacheWrapper.run": 100.0}
BASE = sum(count * TIMES[name] for name, count in ((DECODING, 300), ("mm_bf16", 260))) + 40 * 100.0
SLACK = '[thresholds]\n"*" = { slower = "90%" }\n'


@pytest.fixture
def compared(tmp_path, monkeypatch, command):
    """Exit code and output of `compare`, of one API's times changed by a share."""
    monkeypatch.chdir(tmp_path)
    plan = replay.of_file(written(tmp_path / "traffic.jsonl")).plan

    def compare(name, share, settings="", *words):
        (tmp_path / "flashinfer-perf.toml").write_text(SLACK + settings)
        head = {**TIMES, name: TIMES[name] * (1 + share)} if name else TIMES
        for file, times in (("base.json", TIMES), ("head.json", head)):
            write(tmp_path / file, recorded_of(plan, document(*rows(plan, times))))
        code, text = command("compare", "--base", "base.json", "--head", "head.json", *words)
        return code, " ".join(text.split())

    return compare


def test_the_verdict_begins_with_the_traffic_and_names_what_changed_it(compared):
    code, text = compared("mm_bf16", -0.2)
    whole = -0.2 * 260 * 20.0 / BASE
    assert code == 0
    assert text.startswith(f"your traffic: {whole:+.2%} +- ")
    assert re.search(rf"mm_bf16 -20\.00% \+- [\d.]+%, which is {whole:+.2%}; ", text)
    assert f"{DECODE}.run -" not in text.partition("ms per second")[0]
    assert f"{(1 + whole) * BASE * 1e-3 / 2:.4g} ms per second" in text
    assert "ms per second in 60.0% of the calls" in text, "fused_everything has no case"
