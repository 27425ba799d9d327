"""Files of shards, joined."""

import pytest
from made import row

from pytest_flashinfer_perf.extensions.shards import merging
from pytest_flashinfer_perf.rows import run_file


def test_files_of_shards_are_one_run_or_say_why_not():
    def part(nth, *names, of=2, tests=None, **machine):
        shard = {"nth": nth, "of": of, "whole": "w", "tests": tests or [[place, f"t::{name}"] for place, name in names]}
        rows = [{**row(name), "fullname": f"t::{name}"} for _, name in names]
        said = {"machine_info": {"node": f"n{nth}", **machine}, "flashinfer_perf": {"schema": 2, "shard": shard}}
        document = {"benchmarks": rows, "datetime": f"2026-11-2{nth}T00:00:00+00:00", **said}
        return merging.ShardPart(document, run_file.parse(document, f"{nth}.json"))

    one, two = part(1, (0, "a"), (3, "d")), part(2, (1, "b"))
    whole = merging.merged([two, one])
    assert [record["fullname"] for record in whole["benchmarks"]] == ["t::a", "t::b", "t::d"]
    assert (whole["machine_info"]["node"], whole["datetime"][:10]) == ("n2, n1", "2026-11-21")
    for parts, sentence in (
        ([one], "shards are missing: 2/2 (--allow gaps)"),
        ([one, part(2, (0, "a"))], "measured more than once: t::a (--allow duplicates)"),
        ([one, part(2, (1, "b"), of=3)], "the files are parts of different wholes"),
        ([one, part(2, (1, "b"), tests=[[1, "t::b"], [2, "t::c"]])], "2.json: no result of t::c: that run was stopped"),
        ([one, part(2, (1, "b"), driver="9")], "mixed versions: driver 9 in 2.json;  in 1.json (--allow versions)"),
    ):
        with pytest.raises(merging.MergeError) as error:
            merging.merged(parts)
        assert sentence in str(error.value)
    assert len(merging.merged([one], ["gaps"])["benchmarks"]) == 2
