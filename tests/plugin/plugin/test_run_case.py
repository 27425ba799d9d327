"""What an extension makes of a case: it adds to the row, or does something else than to measure."""

import pytest
from decode_cases import TEST

ADDS = """
import dataclasses, pytest

@pytest.hookimpl(wrapper=True)
def pytest_perf_run_case(item, case):
    run = yield
    return dataclasses.replace(run, row=dataclasses.replace(run.row, facts={"seen": case.backend_name}))
"""
ELSE = """
from pytest_flashinfer_perf.plugin.fixture import CaseRun
from pytest_flashinfer_perf.plugin.results import BOARD
from pytest_flashinfer_perf.session.stash import INSTEAD, PARTS

class Other:
    id, marks, keywords = "other", {}, {"neither"}

    def __init__(self, routine):
        self.routine, self.backend = routine, routine.backends["torch"]

def pytest_configure(config):
    config.stash[INSTEAD] = "nothing is timed here"

def pytest_perf_cases(routine, shapes):
    return [Other(routine)] if shapes else None

def pytest_perf_run_case(item, case):
    item.stash[PARTS] = {"stranger": {"seen": case.id}}
    return CaseRun()

def pytest_perf_terminal(config):
    return [f"seen: {part['seen']}" for part in config.stash[BOARD].parts("stranger")]
"""


def test_an_extension_adds_to_the_row_of_a_case(session):
    done = session("--perf-backends=torch", conftest=ADDS, test_decode=TEST)
    assert [row["extra_info"]["seen"] for row in done.rows.values()] == ["torch", "torch"]


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_an_extension_does_something_else_with_what_it_gives_a_test(session, workers):
    """What it tells of the test comes to the process that shows it, and a call of one's own is skipped."""
    own = f"{TEST}\ndef test_own(perf): perf.time(len, [1])"
    done = session(*workers, conftest=ELSE, test_decode=own)
    assert (done.outcomes, done.rows) == ({"passed": 1, "skipped": 1}, {})
    done.says("seen: other")
    assert "nothing is timed here" in done.out


def test_what_an_extension_gives_is_selected_by_its_keywords(session):
    assert session("-k", "neither", conftest=ELSE, test_decode=TEST).outcomes == {"passed": 1}
