"""A run in shards, and its files as one."""

import copy
import json

import made
import pytest
from sessions import document, sameness

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.shards import merging, shards
from pytest_flashinfer_perf.extensions.shards.merging import MergeError, ShardPart
from pytest_flashinfer_perf.extensions.shards.shards import Shard, ShardError
from pytest_flashinfer_perf.rows import run_file


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "/3", "a/b", "-1/3", "1/3/5"])
def test_a_shard_is_i_of_n(text):
    with pytest.raises(ShardError, match="must be i/n with i from 1 to n"):
        shards.parse(text)
    assert shards.parse("2/3") == Shard(2, 3)


SUITE = """
import pytest
TINY = "--page_size 4 --batch_size 2 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 16 --s_kv "

@pytest.mark.perf_cases("BatchDecodeWithPagedKVCacheWrapper", *(f"{TINY}{n}" for n in range(8, 12)))
def test_decode(perf, case): perf(case)

def test_plain(): pass
"""
QUICK = (
    "--perf-iters=3",
    "--perf-warmup=1",
    "--perf-device=cpu",
    "--perf-backends=torch,fa3",
    "-p",
    "no:cacheprovider",
)


@pytest.fixture
def suite(pytester):
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def test_three_shards_are_the_whole(suite, capsys):
    suite.runpytest(*QUICK, "--benchmark-json=whole.json").assert_outcomes(passed=5, skipped=4)
    passed = 0
    for nth in (1, 2, 3):
        done = suite.runpytest(*QUICK, f"--perf-shard={nth}/3", f"--benchmark-json=shard-{nth}.json")
        assert done.ret == 0
        passed += done.parseoutcomes().get("passed", 0)
    assert passed == 5
    files = [str(suite.path / f"shard-{nth}.json") for nth in (3, 1, 2)]
    assert cli.main(["merge", *files, "--output", str(suite.path / "merged.json")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("wrote 4 rows of 3 files to ")
    whole, merged = document(suite, "whole.json"), document(suite, "merged.json")
    assert list(map(sameness, merged["benchmarks"])) == list(map(sameness, whole["benchmarks"]))
    assert merged["machine_info"] == whole["machine_info"]
    assert set(merged) == set(whole)
    left = [sorted(one["test"] for one in said["flashinfer_perf"]["unmeasured"]) for said in (whole, merged)]
    assert left[0] == left[1]
    assert len(left[0]) == 4


SETS_THE_CODE = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    session.exitstatus |= exitstatus
"""


def test_a_shard_without_tests_is_no_error_beside_a_plugin_that_sets_the_exit_code(suite):
    """As syrupy does: https://github.com/syrupy-project/syrupy, 7.0.2."""
    suite.makeconftest(SETS_THE_CODE)
    suite.runpytest(*QUICK, "--perf-shard=12/12").assert_outcomes(deselected=9)
    assert suite.runpytest(*QUICK, "--perf-shard=12/12").ret == pytest.ExitCode.OK


def test_a_shard_without_rows_and_one_without_tests_are_files_too(suite):
    few = (*QUICK, "-k", "fa3 and s8")
    for nth, skipped in ((1, 1), (2, 0)):
        done = suite.runpytest(*few, f"--perf-shard={nth}/2", f"--benchmark-json={nth}.json")
        assert done.ret == 0
        assert done.parseoutcomes().get("skipped", 0) == skipped
    merged = merging.merged([merging.read(suite.path / f"{nth}.json") for nth in (1, 2)])
    assert merged["benchmarks"] == []
    assert [one["backend"] for one in merged["flashinfer_perf"]["unmeasured"]] == ["fa3"]
    assert suite.runpytest(*QUICK, "-k", "nothing", "--perf-shard=1/2").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_an_older_file_is_left_by_a_look(suite):
    few = (*QUICK, "-k", "torch", "--perf-shard=1/2", "--benchmark-json=1.json")
    suite.runpytest(*few)
    before = (suite.path / "1.json").read_text()
    suite.runpytest(*few, "--collect-only")
    assert (suite.path / "1.json").read_text() == before


def test_a_shard_whose_tests_are_all_left_out_is_an_error(suite):
    suite.makeconftest("def pytest_collection_finish(session): session.items.clear(); session.testscollected = 0")
    done = suite.runpytest(*QUICK, "--perf-shard=1/2")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def part(nth, tests, **changed):
    said = {
        "machine_info": {"node": f"host-{nth}", "flashinfer": "0.7.2"},
        "commit_info": {"id": "abc"},
        "datetime": f"2026-01-0{nth}",
        "benchmarks": [{**made.row(test), "fullname": test} for test in tests],
        "flashinfer_perf": {
            "schema": 2,
            "roofs": {f"GPU-{nth}": {}},
            "unmeasured": [{"case": "u", "test": f"u{nth}", "outcome": "skipped", "reason": "no"}],
            "shard": {"nth": nth, "of": 2, "count": 4, "whole": "w", "tests": [[nth, test] for test in tests]},
        },
    }
    for path, value in changed.items():
        inner = said
        *steps, last = path.split("__")
        for step in steps:
            inner = inner[int(step) if step.isdecimal() else step]
        inner[last] = value
    return ShardPart(said, run_file.parse(said, f"{nth}.json"))


GOOD = [part(1, ["a", "c"]), part(2, ["b"])]


def test_what_is_merged_says_where_it_was():
    made = merging.merged(copy.deepcopy(GOOD))
    assert [one["fullname"] for one in made["benchmarks"]] == ["a", "c", "b"]
    assert made["machine_info"]["node"] == "host-1, host-2"
    assert set(made["flashinfer_perf"]["roofs"]) == {"GPU-1", "GPU-2"}
    assert "shard" not in made["flashinfer_perf"]


SHARD = "flashinfer_perf__shard"


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (part(2, ["a"]), "measured more than once: a"),
        (part(2, ["b"], **{f"{SHARD}__of": 3}), "parts of different wholes"),
        (part(2, ["b"], **{f"{SHARD}__whole": "x"}), "parts of different wholes"),
        (part(2, ["b"], **{f"{SHARD}__nth": 1}), "shards are missing: 2/2"),
        (part(2, ["b"], **{f"{SHARD}__tests": [[2, "b"], [3, "d"]]}), "2.json: no result of d: that run was"),
        (part(2, ["b"], **{SHARD: None}), "2.json: written without --perf-shard"),
        (part(2, ["b"], commit_info__id="def"), "mixed commits: def in 2.json; abc in 1.json"),
        (part(2, ["b"], machine_info__flashinfer="0.7.3"), "mixed versions: flashinfer 0.7.3 in 2.json; "),
        (part(2, ["b"], benchmarks__0__extra_info__device_name="B200"), "mixed GPU models: B200 in 2.json; "),
    ],
)
def test_what_is_not_one_run_is_refused(second, sentence):
    with pytest.raises(MergeError) as refused:
        merging.merged([GOOD[0], second])
    assert sentence in str(refused.value)


def test_a_file_that_is_none_is_refused(tmp_path, capsys):
    path = tmp_path / "x.json"
    of_nobody = json.dumps({"benchmarks": []})
    whole = json.dumps(part(1, ["a"], **{SHARD: None}).document)
    for text, sentence in ((of_nobody, "no run"), (whole, "written without --perf-shard")):
        path.write_text(text)
        assert cli.main(["merge", str(path), "-o", str(tmp_path / "all.json")]) == 2
        assert sentence in capsys.readouterr().err
