"""Sessions that measure a recording: its cases by `torch` on a CPU, their order, their share, their weighted sum."""

import json
import re
import shlex
import sys
import time
from types import SimpleNamespace

import pytest
from recorded_traffic import CALLS, decode, product, unknown, written
from reports import document, write
from step_runs import recorded_of, rows

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.config import planting
from pytest_flashinfer_perf.kernel_timing import instruments, planted_work
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.traffic import recording, replay

ON_CPU = ("--import-mode=importlib", "-p", "no:cacheprovider", "--perf-device=cpu", "--perf-backends=torch")
QUICK = ("--perf-iters=3", "--benchmark-json=run.json")
DECODE = "BatchDecodeWithPagedKVCacheWrapper"
DECODING = f"{DECODE}.run"


@pytest.fixture
def run(pytester):
    """Pytest on a recording, named as a person names it."""

    def run(*arguments, calls=CALLS, **facts):
        written(pytester.path / "traffic.jsonl", calls, **facts)
        return pytester.runpytest("traffic.jsonl", *ON_CPU, *arguments)

    return run


def test_a_recording_is_measured_and_summed(run, pytester):
    done = run(*QUICK)
    done.assert_outcomes(passed=5, skipped=1)
    text = done.stdout.str()
    assert "traffic.jsonl: 5 cases for 60.0% of the calls, " in text
    assert re.search(r"fused_everything, 40\.0% of the calls: no routine\s+calls it", text)
    found = run_file.read(pytester.path / "run.json")
    counts = {kernel.cases[0]: kernel.count for kernel in found.step.kernels if kernel.cases}
    took = {f"{row.identity.routine}/{row.identity.shape}": row.median for row in found.ours}
    assert took.keys() == counts.keys()
    whole = sum(counts[case] * seconds for case, seconds in took.items())
    assert f"sum {1e3 * whole:#.4g} ms +- " in text
    assert f"{1e3 * whole / 2:#.4g} ms of GPU time for each second that was recorded" in text
    per_api = [
        line.split() for line in text.splitlines() if re.match(rf"({DECODE}|mm_bf16|Batch\w+)\.?\w* +\d+ +\d ", line)
    ]
    assert {line[0]: line[1:3] for line in per_api}[DECODING] == ["300", "2"]
    assert sum(float(line[-1].rstrip("%")) for line in per_api) == pytest.approx(100, abs=0.3)


def test_the_sum_stands_beside_the_kernels_that_were_seen(tmp_path, capsys):
    """Which kernel ran more often than is measured, and which longer: of 21 ms, a third is in the second one."""
    names, seen = ("decode_kernel<fa2>", "merge", "another"), [(300, 0.012), (460, 0.008), (3, 0.02)]
    kernels = [recording.KernelTotal(kernel=n, count=c, seconds=s) for n, (c, s) in zip(names, seen, strict=True)]
    path = written(tmp_path / "traffic.jsonl", [decode([9, 17], count=300)], kernels=tuple(kernels))
    plan = replay.of_file(path).plan
    traced = {
        "kernels": names[:2],
        "kernel_runs": [1, 1],
        "kernel_s": [4e-5, 2e-5],
        "busy": 69.0,
        "cold_l2": "rotate",
    }
    made = recorded_of(plan, document(*rows(plan, {DECODING: 70.0}, **traced)))
    assert cli.main(["report", "--markdown", str(write(tmp_path / "run.json", made))]) == 0
    text = capsys.readouterr().out.replace("\\", "")
    assert "sum 21.00 ms" in text
    assert "spent 20.00 ms in the kernels of these cases; the sum, of cold L2 by rotation, is +5.0% of that" in text
    assert "+21.9% if each kernel ran as often as it was recorded" in text
    assert "50.0% of the program's GPU time went into other kernels" in text
    lines = [line.removeprefix("- ") for line in text.splitlines() if "%: " in line]
    assert lines == [
        "+9.0%: recorded 300 x 40.00 us, measured 300 x 46.00 us: decode_kernel&lt;fa2&gt;",
        "-5.5%: recorded 460 x 17.39 us, measured 300 x 23.00 us: merge",
        "+1.5%: between the kernels of a call, which a recording does not time",
    ]


@pytest.mark.parametrize(
    ("words", "passed", "deselected", "line"),
    [
        (("-k", "mm_bf16"), 2, 4, "sum "),
        (("--perf-cover=60%",), 2, 0, "beyond --perf-cover: 3 cases"),
        (("-k", f"{DECODE} and not lens9"), 1, 5, "sum "),
    ],
)
def test_a_part_of_it(run, words, passed, deselected, line):
    done = run(*words, *QUICK)
    assert done.parseoutcomes().get("passed") == passed
    assert done.parseoutcomes().get("deselected", 0) == deselected
    assert line in done.stdout.str()


def test_the_heaviest_come_first_and_each_can_be_run_again(run, pytester):
    collected = [line for line in run("--collect-only", "-q").outlines if "[" in line]
    assert [line.partition("::")[2].partition("[")[0] for line in collected][:3] == [DECODE, DECODE, "mm_bf16"]
    assert collected[-1].endswith("::without-a-case[fused_everything]")
    run(*QUICK)
    for row in json.loads((pytester.path / "run.json").read_text())["benchmarks"]:
        if "lens" in row["name"]:
            again = shlex.split(row["extra_info"]["repro"])[1]
            assert "--actual_seq_lens_kv" in again
    pytester.runpytest(again, *ON_CPU, *QUICK).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("", ("second.jsonl",), "one recording at a time"),
        ("", ("--perf-model=llama-3.1-70b",), "a recording and --perf-model have a sum each"),
        ("", ("--perf-cover=95",), "must be a percentage above 0 and up to 100"),
        ("", ("--perf-backends=nope",), "unknown name 'nope'"),
        ('{"kernel": 3}\n', (), "traffic.jsonl:"),
    ],
)
def test_what_cannot_be_is_one_sentence(pytester, text, words, sentence):
    for name in ("traffic.jsonl", "second.jsonl"):
        path = written(pytester.path / name, [product(4, count=1)])
        path.write_text(path.read_text() + text)
    done = pytester.runpytest("traffic.jsonl", *ON_CPU, *words)
    assert done.ret != 0
    shown = done.stdout.str() + done.stderr.str()
    assert sentence in shown
    assert "Traceback" not in shown
    assert "INTERNALERROR" not in shown


def test_bench_runs_the_recording_alone(pytester, monkeypatch):
    path = written(pytester.path / "traffic.jsonl", [product(4, count=5), unknown(1)])
    monkeypatch.chdir(pytester.path)
    words = [str(path), *ON_CPU[1:], *QUICK]
    assert pytester.run(sys.executable, "-m", "pytest_flashinfer_perf", "bench", *words).ret == 0
    assert len(json.loads((pytester.path / "run.json").read_text())["benchmarks"]) == 1


class Looks:
    """A clock that goes on by a microsecond when it is looked at, on a busy machine as on any other."""

    now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


def test_planted_work_in_one_api_moves_the_sum_by_its_share(run, pytester, monkeypatch):
    """Ten milliseconds in each case, beside which a call is little by this clock; then half as much more in one."""
    clock = SimpleNamespace(**{**vars(time), "perf_counter": Looks()})
    for module in (instruments, planted_work):
        monkeypatch.setattr(module, "time", clock)
    calls = [decode([9, 17], count=300), product(64, count=100)]
    tests = {line.partition("::")[2]: line for line in run("--collect-only", "-q", calls=calls).outlines if "[" in line}
    plants = dict.fromkeys(tests.values(), 0.01)
    sums = []
    for more in (1.0, 1.5):
        slower = {test: 0.01 * (more if DECODE in test else 1) for test in plants}
        planting.write(pytester.path / "plants.json", slower)
        run("--perf-plant=plants.json", *QUICK, calls=calls)
        found = run_file.read(pytester.path / "run.json")
        took = {row.identity.routine: row.median for row in found.ours}
        sums.append(300 * took[DECODE] + 100 * took["mm_bf16"])
    assert sums[1] / sums[0] - 1 == pytest.approx(0.5 * 300 / 400, abs=0.01)


# The verdict of the sum, from files of runs whose times are known.

TIMES = {DECODING: 40.0, "mm_bf16": 20.0, "BatchPrefillWithPagedKVCacheWrapper.run": 100.0}
BASE = sum(count * TIMES[name] for name, count in ((DECODING, 300), ("mm_bf16", 260))) + 40 * 100.0
SLACK = '[thresholds]\n"*" = { slower = "90%" }\n'


@pytest.fixture
def compared(tmp_path, monkeypatch, capsys):
    """Exit code and output of `compare`, of one API's times changed by a share."""
    monkeypatch.chdir(tmp_path)
    plan = replay.of_file(written(tmp_path / "traffic.jsonl")).plan

    def compare(name, share, settings="", *words):
        (tmp_path / "flashinfer-perf.toml").write_text(SLACK + settings)
        head = {**TIMES, name: TIMES[name] * (1 + share)} if name else TIMES
        for file, times in (("base.json", TIMES), ("head.json", head)):
            write(tmp_path / file, recorded_of(plan, document(*rows(plan, times))))
        code = cli.main(["compare", "--base", "base.json", "--head", "head.json", *words])
        shown = capsys.readouterr()
        return code, " ".join((shown.out + shown.err).split())

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


@pytest.mark.parametrize(
    ("planted", "settings", "code", "sentence"),
    [
        (0.05, '"sum" = { slower = "1%" }', 1, "WORSE your traffic: +2.83% +- "),
        (0.05, '"sum" = { slower = "1%" }', 1, "sum is 2.83% slower, more than slower 1.00%"),
        (0.05, '"sum" = { slower = "3%" }', 0, "your traffic: +2.83% +- "),
        (0.05, '"Batch*" = { slower = "4%" }', 1, f"{DECODING} is 5.00% slower, more than"),
        (0.05, '"mm_*" = { slower = "4%" }', 0, "your traffic: "),
        (0.0, '"sum" = { max_ms_per_s = 10 }', 1, "sum takes 10.6 ms per second, more than max_ms_per_s 10"),
        (0.0, '"sum" = { max_ms_per_s = 11 }', 0, "your traffic: +0.00% +- "),
        (0.0, '"nope" = { slower = "1%" }', 0, "[traffic] 'nope' fits neither sum nor an API of a recording"),
        (0.0, '"sum" = { slower_step = "1%" }', 2, "[traffic] 'sum': unknown name 'slower_step'"),
    ],
)
def test_limits_hold_the_sum_and_its_parts(compared, planted, settings, code, sentence):
    """The planted share of one API moves the sum by that of its time."""
    found, text = compared(DECODING if planted else "", planted, f"[traffic]\n{settings}\n")
    assert sentence in text
    assert found == code


def test_every_form_of_the_verdict_has_the_traffic(compared, tmp_path):
    forms = {name: tmp_path / f"verdicts.{name}" for name in ("markdown", "json", "junit")}
    limit = '[traffic]\n"sum" = { slower = "1%" }\n'
    compared(DECODING, 0.05, limit, *(f"--{name}={path}" for name, path in forms.items()))
    assert "WORSE your traffic: +2.83%" in forms["markdown"].read_text()
    [step] = json.loads(forms["json"].read_text())["steps"]
    assert (step["subject"], step["model"], len(step["worse"])) == ("your traffic", "traffic.jsonl", 1)
    assert '<failure message="WORSE your traffic' in forms["junit"].read_text()
