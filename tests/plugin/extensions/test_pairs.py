"""All pairs of options of different features, on one tiny case: one of each pair is typed, one in an ini file.

A feature is an option of the core, or an extension. The options are those that are declared: each has one sample here.
"""

import functools
import itertools
import json
import os
import shlex

import pytest
import recorded_traffic
import traceset_runs
from decode_cases import QUICK

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.plugin import options

SAMPLES = {
    "--perf-suite": "--perf-suite=smoke",
    "--perf-backends": "--perf-backends=torch",
    "--perf-case": "--perf-case='--routine mm_bf16 --m 2 --n 16 --k 32 --backends torch'",
    "--perf-max-memory": "--perf-max-memory=1",
    "--perf-device": "--perf-device=cpu:any",
    "--perf-seed": "--perf-seed=7",
    "--perf-autotune-cache": "--perf-autotune-cache=cache.json",
    "--perf-case-tag": "--perf-case-tag=mine",
    "--perf-instrument": "--perf-instrument=wall",
    "--perf-cuda-graph": "--perf-cuda-graph=off",
    "--perf-cold-l2": "--perf-cold-l2=none",
    "--perf-iters": "--perf-iters=5",
    "--perf-warmup": "--perf-warmup=2",
    "--perf-peaks": "--perf-peaks=datasheet",
    "--perf-strict-skips": "--perf-strict-skips=*",
    "--perf-refcheck": "--perf-refcheck=only",
    "--perf-allow-output-mismatch": "--perf-allow-output-mismatch",
    "--perf-save-baseline": "--perf-save-baseline=mine",
    "--perf-gate": "--perf-gate=base.json",
    "--perf-gate-strict": "--perf-gate=base.json --perf-gate-strict",
    "--perf-gate-allow": "--perf-gate=base.json --perf-gate-allow=library",
    "--perf-timeout": "--perf-timeout=0",
    "--perf-resume": "--perf-resume --benchmark-json=resumed.json",
    "--perf-config": "--perf-config=rules.toml",
    "--perf-api": "--perf-api",
    "--perf-record": "--perf-record",
    "--perf-model": "--perf-model=tiny.json",
    "--perf-step": "--perf-model=tiny.json --perf-step='--tp 1 --batch 1 --context 16'",
    "--perf-testlist": "--perf-testlist=lines.list",
    "--perf-flags": "--perf-flags='--routine mm_bf16 --m 2 --n 16 --k 32 --backends torch'",
    "--perf-cover": "traffic.jsonl --perf-cover=50%",
    "--perf-fuzz": "--perf-fuzz --perf-fuzz-seconds=1",
    "--perf-fuzz-flags": "--perf-fuzz --perf-fuzz-seconds=1 --perf-fuzz-flags='--m 2'",
    "--perf-fuzz-seconds": "--perf-fuzz --perf-fuzz-seconds=1",
    "--perf-findings": "--perf-fuzz --perf-fuzz-seconds=1 --perf-findings=found",
    "--perf-host": "--perf-host",
    "--perf-ranks": "--perf-ranks=2",
    "--perf-no-multicast": "--perf-no-multicast",
    "--perf-html": "--perf-html=page.html",
    "--perf-csv": "--perf-csv=rows.csv",
    "--perf-vllm-csv": "--perf-vllm-csv=.",
    "--perf-prebuild": "--perf-prebuild",
    "--perf-shard": "--perf-shard=1/1",
    "--perf-trace-set": "--perf-trace-set=set",
    "--perf-trust-solutions": "--perf-trace-set=set --perf-trust-solutions",
    "--perf-trace-config": "--perf-trace-set=set --perf-trace-config=config.yaml",
    "--perf-trace-option": "--perf-trace-set=set --perf-trace-option=iterations=2",
    "--perf-trace-output": "--perf-trace-set=set --perf-trace-output=traces",
}
OF_ITS_OWN = {"--perf-only", "--perf-plant"}  # what this plugin tells its own processes
# An option by itself ends so where it is not 0: one run decides nothing, and there is no GPU, and no case of vLLM's.
ENDS = {"--perf-gate": 2, "--perf-gate-strict": 2, "--perf-gate-allow": 2, "--perf-prebuild": 4, "--perf-vllm-csv": 4}
TINY = {"architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
TINY |= {"num_key_value_heads": 1, "num_hidden_layers": 1, "head_dim": 16, "vocab_size": 64, "torch_dtype": "bfloat16"}
CASE = """
import pytest

@pytest.mark.perf_cases("mm_bf16", "--m 2 --n 16 --k 32")
def test_it(perf, case): perf(case)

if __name__ == "__main__":  # with --perf-record
    from pytest_flashinfer_perf.extensions.compat import do_bench
    do_bench(int, 0, 1)
"""
# Sentences of what needs more than two options have, which name no other option.
REFUSALS = (
    "does not allow this skip",
    "nothing was measured, nothing is saved",
    "--perf-case: no test that is named has the case",
    "leave out the other option",
    "leave out --perf-re",
    "a recording and --perf-model have a sum each",
    "REFUSED: nothing was compared",
)
WRONG = ("INTERNALERROR", "Traceback (most recent call last)")


def features():
    """Each option's, by the option's name."""
    of_core = {one.name: one.name for one in options.ALL}
    declared = loading.manager().hook.pytest_perf_options.get_hookimpls()
    return of_core | {
        one.name: hook.plugin_name for hook in declared for table in hook.function().values() for one in table
    }


def pairs():
    known = features()
    return [pair for pair in itertools.combinations(SAMPLES, 2) if known[pair[0]] != known[pair[1]]]


def test_each_option_has_a_sample():
    assert {*SAMPLES, *OF_ITS_OWN} == {*features()}
    assert [name for name, sample in SAMPLES.items() if name not in sample] == []


HOURLY = pytest.mark.skipif("PERF_ALL_PAIRS" not in os.environ, reason="takes an hour: PERF_ALL_PAIRS=1 asks for it")


@pytest.fixture
def session_of(pytester, scripted_times):  # noqa: ARG001
    """The exit code of a session with the samples of these options, and what it printed."""
    pytester.makepyfile(test_it=CASE)
    traceset_runs.gemm(pytester.path / "set")
    (pytester.path / "lines.list").write_text("--routine mm_bf16 --m 4 --n 16 --k 32 --backends torch\n")
    (pytester.path / "tiny.json").write_text(json.dumps(TINY))
    (pytester.path / "rules.toml").write_text('[thresholds]\n"*" = { slower = "5%" }\n')
    (pytester.path / "config.yaml").write_text("iterations: 2\n")
    recorded_traffic.written(pytester.path / "traffic.jsonl", [recorded_traffic.product(4, 16, 32, count=60)])
    base = ("test_it.py", *QUICK, "--perf-iters=5", "--perf-backends=torch", "-W", "ignore")
    pytester.runpytest(*base, "--benchmark-json=base.json")

    @functools.cache
    def run(*names, in_ini=""):
        """One of them may be asked for in an ini file, the others are typed."""
        pytester.makeini(f"[pytest]\naddopts = {SAMPLES.get(in_ini, '')}\n")
        typed = [word for name in names if name != in_ini for word in shlex.split(SAMPLES[name])]
        done = pytester.runpytest(*base, *typed)
        return int(done.ret), done.stdout.str() + done.stderr.str()

    return run


def fault(session_of, pair, in_ini):
    """What is wrong with the end of a session with two options: it ends as with one of them, or says why not."""
    code, printed = session_of(*pair, in_ini=in_ini)
    as_one = code in {session_of(name)[0] for name in pair}
    refused = code != 0 and (all(name in printed for name in pair) or any(one in printed for one in REFUSALS))
    return None if (as_one or refused) and not any(wrong in printed for wrong in WRONG) else (code, printed[-500:])


@pytest.mark.more
@HOURLY
@pytest.mark.timeout(600)
def test_an_option_by_itself_ends_well(session_of):
    ended = {name: session_of(name) for name in SAMPLES}
    assert {name: printed[-500:] for name, (code, printed) in ended.items() if code != ENDS.get(name, 0)} == {}


@pytest.mark.more
@HOURLY
@pytest.mark.timeout(6000)
def test_two_options_end_as_one_of_them_or_with_a_sentence(session_of):
    """In turns the first and the second one is in an ini file."""
    faults = {pair: fault(session_of, pair, pair[nth % 2]) for nth, pair in enumerate(pairs())}
    assert {pair: found for pair, found in faults.items() if found} == {}
