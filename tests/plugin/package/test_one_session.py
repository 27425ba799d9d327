"""The tests' own way to start a session: times are scripted in it, in its workers, and in processes of its own."""

import pytest

OWN = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))\ndef test_plain(): pass"


@pytest.mark.parametrize(
    ("options", "where"), [((), {}), (("-n", "1"), {"process": True})], ids=["here", "in a worker of a process"]
)
def test_a_session_has_a_code_outcomes_rows_and_scripted_times(session, options, where):
    done = session(*options, test_own=OWN, **where)
    assert (done.code, done.outcomes) == (0, {"passed": 2})
    assert list(done.rows) == ["test_own"]
    assert done["test_own"]["stats"]["data"] == [1.0e-3, 1.001e-3, 0.999e-3]
    assert done.document["benchmarks"][0]["fullname"] == "test_own.py::test_own"
    done.says("*2 passed*")


def test_nothing_is_left_of_the_session_before(session):
    assert session(test_own=OWN).rows
    done = session("--perf-iters=none")
    assert (done.code, done.outcomes, done.rows) == (4, {}, {})
    done.complains("*--perf-iters*must be a whole number*")


def test_how_long_calls_take_can_be_said_by_a_conftest(session):
    script = "import scripted\nscripted.install(scripted.Scripted(0.1, reading=0.1))"
    own = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))"
    done = session("--perf-device=cpu", "--benchmark-max-time=0.01", quick=False, conftest=script, test_own=own)
    assert done["test_own"]["stats"]["data"] == [0.1]
