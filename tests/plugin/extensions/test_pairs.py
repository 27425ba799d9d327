"""All pairs of options of different features, on one tiny case: typed, in an ini file, and one of them in each.

A feature is an option of the core, or an extension. The options are those that are declared: each has one sample here.
A session has many options at once, so that few of them have each pair; two that refuse each other are asked alone.
"""

import itertools
import json
import shlex
import shutil

import pytest
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
    "--perf-cpu-threads": "--perf-cpu-threads=2",
    "--perf-iters": "--perf-iters=5",
    "--perf-warmup": "--perf-warmup=2",
    "--perf-peaks": "--perf-peaks=datasheet",
    "--perf-strict-skips": "--perf-strict-skips=*",
    "--perf-refcheck": "--perf-refcheck=only",
    "--perf-allow-output-mismatch": "--perf-allow-output-mismatch",
    "--perf-save-baseline": "--perf-save-baseline=mine",
    "--perf-gate": "--perf-gate=base.json",
    "--perf-gate-strict": "--perf-gate=base.json --perf-gate-strict",
    "--perf-gate-allow": "--perf-gate=base.json --perf-gate-allow=gpu",
    "--perf-timeout": "--perf-timeout=0",
    "--perf-resume": "--perf-resume --benchmark-json=resumed.json",
    "--perf-config": "--perf-config=rules.toml",
    "--perf-api": "--perf-api",
    "--perf-record": "--perf-record",
    "--perf-model": "--perf-model=tiny.json",
    "--perf-step": "--perf-model=tiny.json --perf-step='--tp 1 --batch 1 --context 16'",
    "--perf-testlist": "--perf-testlist=lines.list",
    "--perf-flags": "--perf-flags='--routine mm_bf16 --m 2 --n 16 --k 32 --backends torch'",
    "--perf-fuzz": "--perf-fuzz --perf-fuzz-seconds=1",
    "--perf-fuzz-flags": "--perf-fuzz --perf-fuzz-seconds=1 --perf-fuzz-flags='--m 2'",
    "--perf-fuzz-seconds": "--perf-fuzz --perf-fuzz-seconds=1",
    "--perf-findings": "--perf-fuzz --perf-fuzz-seconds=1 --perf-findings=found",
    "--perf-host": "--perf-host",
    "--perf-memory": "--perf-memory",
    "--perf-ranks": "--perf-ranks=2",
    "--perf-no-multicast": "--perf-no-multicast",
    "--perf-html": "--perf-html=page.html",
    "--perf-csv": "--perf-csv=rows.csv",
    "--perf-vllm-csv": "--perf-vllm-csv=.",
    "--perf-shard": "--perf-shard=1/1",
    "--perf-trace-set": "--perf-trace-set=set",
    "--perf-trust-solutions": "--perf-trace-set=set --perf-trust-solutions",
    "--perf-trace-config": "--perf-trace-set=set --perf-trace-config=config.yaml",
    "--perf-trace-option": "--perf-trace-set=set --perf-trace-option=iterations=2",
    "--perf-trace-output": "--perf-trace-set=set --perf-trace-output=traces",
}
OF_ITS_OWN = {"--perf-only", "--perf-plant"}  # what this plugin tells its own processes
# The code and the sentence of a session with this option, where it does not end with 0, the first one's first: one run
# decides nothing, and no case is one of vLLM's.
UNDECIDED = 2, "no case could be judged, which is no pass"
ENDS = {
    "--perf-gate": UNDECIDED,
    "--perf-gate-strict": UNDECIDED,
    "--perf-gate-allow": UNDECIDED,
    "--perf-vllm-csv": (4, "--perf-vllm-csv: nothing written, no case of vllm_decode was measured"),
}
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
# Does something else than to time cases: what other options do besides is shown by a session without it.
MODES = ("--perf-refcheck", "--perf-record", "--perf-fuzz")
FUZZ = ("--perf-fuzz", "--perf-fuzz-flags", "--perf-fuzz-seconds", "--perf-findings")
DATA_SET = ("--perf-trace-set", "--perf-trust-solutions", "--perf-trace-config", "--perf-trace-option")
# Each of the first options ends a session with each of the others, with this code and sentence.
REFUSED = (
    (("--perf-record",), ("--perf-refcheck",), 4, "which have no reference: leave out --perf-refcheck=only"),
    (("--perf-record",), ("--perf-resume",), 4, "runs a program anew: leave out --perf-resume"),
    (("--perf-record",), ("--perf-case",), 4, "which are of no case: leave out --perf-case"),
    (("--perf-record",), FUZZ, 4, "which have no shapes to search: leave out --perf-fuzz"),
    (("--perf-strict-skips",), (*DATA_SET, "--perf-trace-output"), 1, "--perf-strict-skips=* does not allow this skip"),
)
MOST = 8  # options of one session
PARTS = 10  # for as many processes
WRONG = ("INTERNALERROR", "Traceback (most recent call last)", "--perf-prebuild failed")  # but where it is to


def features():
    """Each option's, by the option's name."""
    of_core = {one.name: one.name for one in options.ALL}
    declared = loading.manager().hook.pytest_perf_options.get_hookimpls()
    return of_core | {
        one.name: hook.plugin_name for hook in declared for table in hook.function().values() for one in table
    }


def pairs():
    known = features()
    there = [name for name in SAMPLES if name in known]
    return [pair for pair in itertools.combinations(there, 2) if known[pair[0]] != known[pair[1]]]


def refusals():
    """The code and the sentence of each pair that is refused."""
    ends = {frozenset(pair): end for one, other, *end in REFUSED for pair in itertools.product(one, other)}
    return {pair: ends[frozenset(pair)] for pair in pairs() if frozenset(pair) in ends}


def modes(names):
    return {mode for mode in MODES for name in names if mode in SAMPLES[name]}


def groups():
    """Options for each session, so that every pair that is not refused is in one that has no mode but its own.

    The first pair that is left is joined by what goes with all that are there, and has the most pairs left with them.
    """
    refused = refusals()
    left = {pair: modes(pair) for pair in pairs() if pair not in refused}
    names = list(dict.fromkeys(itertools.chain(*left)))
    never = {*map(frozenset, refused)}
    while left:
        group, mode = next(iter(left.items()))
        while len(group) < MOST:
            gains = {
                name: sum(left.get((one, name), left.get((name, one))) == mode for one in group)
                for name in names
                if name not in group
                and modes((*group, name)) == mode
                and not any({one, name} in never for one in group)
            }
            best = max(gains, key=gains.get, default=None)
            if not gains.get(best):
                break
            group = (*group, best)
        left = {pair: of for pair, of in left.items() if of != mode or not {*pair} <= {*group}}
        yield group


def test_each_option_has_a_sample():
    assert {*SAMPLES, *OF_ITS_OWN} == {*features()}
    assert [name for name, sample in SAMPLES.items() if name not in sample] == []
    assert {*itertools.chain(*(one + other for one, other, *_ in REFUSED)), *ENDS, *MODES} <= {*SAMPLES}


@pytest.fixture
def session_of(pytester, monkeypatch, scripted_times):  # noqa: ARG001
    """The exit code of a session with the samples of these options, and what it printed.

    Each is in a copy of one folder, which has the file of a run without any option.
    """
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")  # there is no GPU to compile for
    template = pytester.mkdir("template")
    (template / "test_it.py").write_text(CASE)
    traceset_runs.gemm(template / "set")
    (template / "lines.list").write_text("--routine mm_bf16 --m 4 --n 16 --k 32 --backends torch\n")
    (template / "tiny.json").write_text(json.dumps(TINY))
    (template / "rules.toml").write_text('[thresholds]\n"*" = { slower = "5%" }\n')
    (template / "config.yaml").write_text("iterations: 2\n")
    base = (*QUICK, "--perf-iters=5", "--perf-backends=torch", "-W", "ignore")
    number = itertools.count()

    def run(typed, in_ini, folder=None, *more):
        folder = folder or shutil.copytree(template, pytester.path / f"session{next(number)}")
        monkeypatch.chdir(folder)
        words = " ".join([*base, *(SAMPLES[name] for name in in_ini)])
        (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {words}\n")
        done = pytester.runpytest("test_it.py", *more, *shlex.split(" ".join(SAMPLES[name] for name in typed)))
        return int(done.ret), done.stdout.str() + done.stderr.str()

    run((), (), template, "--benchmark-json=base.json")
    return run


def in_both_places(names):
    """A half of them typed, and the other in an ini file; then the other way round."""
    half = len(names) // 2
    return (names[:half], names[half:]), (names[half:], names[:half])


def faults(session_of, ends):
    """What else than its end each session had, by what was typed and what was in the ini file."""
    found = {}
    for names, (code, sentence) in ends.items():
        for typed, in_ini in in_both_places(names):
            ended, printed = session_of(typed, in_ini)
            is_right = ended == code and sentence in " ".join(printed.split())
            if not is_right or any(wrong in printed and wrong not in sentence for wrong in WRONG):
                found[typed, in_ini] = (ended, code, printed[-1000:])
    return found


@pytest.mark.more
@pytest.mark.parametrize("part", range(PARTS))
def test_options_of_all_pairs_end_as_one_of_them(session_of, part):
    of_part = [*groups()][part::PARTS]
    ends = {group: next((ENDS[one] for one in ENDS if one in group), (0, "")) for group in of_part}
    assert faults(session_of, ends) == {}


@pytest.mark.more
def test_options_that_refuse_each_other_say_so(session_of):
    assert faults(session_of, refusals()) == {}
