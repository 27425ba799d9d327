"""All pairs of options of different features, on one tiny case, and each of them from an ini file."""

import functools
import itertools
import shlex

import pytest
import recorded_traffic
import traceset_runs
from decode_cases import QUICK

FEATURES = {
    "case": "--perf-case='--routine mm_bf16 --m 2 --n 16 --k 32 --backends torch'",
    "testlist": "--perf-testlist=lines.list",
    "recording": "traffic.jsonl",
    "set": "--perf-trace-set=set",
    "record": "--perf-record",
    "model": "--perf-model=llama-3.1-8b",
    "api": "--perf-api",
    "memory": "--perf-max-memory=1",
    "device": "--perf-device=cpu:any",
    "cold": "--perf-cold-l2=none",
    "host": "--perf-host",
    "tactics": "--perf-tactics=0.01",
    "autotune": "--perf-autotune-cache=cache.json",
    "tag": "--perf-case-tag=mine",
    "only": "--perf-refcheck=only",
    "wrong": "--perf-allow-output-mismatch",
    "skips": "--perf-strict-skips=*",
    "ranks": "--perf-ranks=2",
    "gate": "--perf-gate=base.json",
    "save": "--perf-save-baseline=mine",
    "timeout": "--perf-timeout=0",
    "resume": "--perf-resume",
    "shard": "--perf-shard=1/1",
    "html": "--perf-html=page.html",
    "csv": "--perf-csv=rows.csv",
    "vllm": "--perf-vllm-csv=.",
}
# What needs more than the two have: the exit code, and what is said.
NEEDS_MORE = {
    ("case", "record"): (4, "--perf-case: no test that is named has the case"),
    ("set", "skips"): (1, "--perf-strict-skips=* does not allow this skip"),
    ("record", "gate"): (2, "REFUSED: nothing was compared"),
    ("record", "only"): (2, "leave out the other option"),
    ("record", "resume"): (2, "--perf-record runs a program anew: leave out --perf-resume"),
    ("cold", "gate"): (2, "REFUSED: nothing was compared"),
    ("only", "gate"): (2, "REFUSED: nothing was compared"),
    ("only", "save"): (2, "nothing was measured, nothing is saved"),
    ("tactics", "only"): (4, "--perf-tactics checks every tactic and times it: leave out --perf-refcheck"),
    ("recording", "model"): (4, "a recording and --perf-model have a sum each"),
}

CASE = """
import pytest

@pytest.mark.perf_cases("mm_bf16", "--m 2 --n 16 --k 32")
def test_it(perf, case): perf(case)

if __name__ == "__main__":  # with --perf-record
    from pytest_flashinfer_perf.extensions.compat import do_bench
    do_bench(int, 0, 1)
"""


@pytest.fixture
def code(pytester, scripted_times):  # noqa: ARG001
    """The exit code of a session with these features, and what it printed."""
    pytester.makepyfile(test_it=CASE)
    traceset_runs.gemm(pytester.path / "set")
    (pytester.path / "lines.list").write_text("--routine mm_bf16 --m 4 --n 16 --k 32 --backends torch\n")
    recorded_traffic.written(pytester.path / "traffic.jsonl", [recorded_traffic.product(4, 16, 32, count=60)])
    base = ("test_it.py", *QUICK, "--perf-iters=5", "--perf-backends=torch", "-W", "ignore")
    pytester.runpytest(*base, "--benchmark-json=base.json")

    @functools.cache
    def run(*features, in_ini=False):
        asked = [FEATURES[name] for name in features]
        pytester.makeini(f"[pytest]\naddopts = {' '.join(asked) if in_ini else ''}\n")
        words = () if in_ini else [word for one in asked for word in shlex.split(one)]
        done = pytester.runpytest(*base, *words)
        return int(done.ret), done.stdout.str() + done.stderr.str()

    return run


@pytest.mark.more
@pytest.mark.timeout(3000)
def test_two_features_end_as_one_of_them_or_with_a_sentence(code):
    wrong = {}
    for pair in itertools.combinations(FEATURES, 2):
        ended, printed = code(*pair)
        known, said = NEEDS_MORE.get(pair, (ended, ""))
        of_one = pair in NEEDS_MORE or ended in {code(name)[0] for name in pair}
        if not of_one or ended != known or said not in printed or "INTERNALERROR" in printed:
            wrong[pair] = (ended, printed[-500:])
    assert wrong == {}


@pytest.mark.more
def test_in_an_ini_file_each_feature_ends_as_typed(code):
    asked = [*((name,) for name in FEATURES), *NEEDS_MORE]
    assert {names: code(*names, in_ini=True)[0] for names in asked} == {names: code(*names)[0] for names in asked}
