"""What this project writes, as the tools read it that it is for; those of docs/formats.md among them."""

import pytest

OWN = """
import torch

def test_neg(perf): perf.time(torch.neg, torch.ones(1 << 12), flops=1 << 12, bytes=1 << 15)
def test_plain(): pass
"""
GIVEN = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_drawn(drawn): assert drawn == drawn

def test_sorted(benchmark): benchmark.pedantic(sorted, args=[[2, 1]])
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_hypothesis_shows_its_statistics_and_plain_benchmarks_their_profile(session, workers):
    options = ("--hypothesis-show-statistics", "--benchmark-cprofile=tottime")
    done = session(*workers, *options, test_given=GIVEN, process=True)
    assert done.outcomes == {"passed": 2}
    done.says("*Hypothesis Statistics*", "test_given.py::test_drawn:")
    assert [name for name, row in done.rows.items() if row.get("cprofile")] == ([] if workers else ["test_sorted"])


def test_a_profile_is_never_of_a_placeholder(session):
    done = session("--benchmark-cprofile=tottime", test_own=OWN)
    assert done.outcomes == {"passed": 2}
    assert not [row for row in done.rows.values() if row.get("cprofile")]
    done.says("--benchmark-cprofile: nothing of tests with perf,*")
