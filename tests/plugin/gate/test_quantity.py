"""What an extension adds to a comparison: a quantity to judge cases by, and a sum over all of them."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Annotated

import pytest
from made import row, run

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.gate import verdict, words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.quantity import OtherTime, Quantity
from pytest_flashinfer_perf.gate.thresholds import Broken, number, share
from pytest_flashinfer_perf.gate.verdict import RunSum, Summing
from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.settings import project_file
from pytest_flashinfer_perf.settings.project_file import ProjectFileError


@dataclass(frozen=True)
class WaitLimits:
    slower_wait: Annotated[float | None, share] = None
    max_waits: Annotated[float | None, number] = None


@dataclass(frozen=True)
class AllLimits:
    max_us: Annotated[float | None, number] = None


def waits(case, asked):
    if asked.max_waits is not None:
        for one in case.after:
            yield Broken(f"max_waits = {asked.max_waits:g}: it waits", unknown=one.facts.get("wait_s") is None)


def crowd(one):
    return Contention(seconds=1.0, cores=2, waited=0.7, taken=0.8, load=6.2) if one.facts.get("crowded") else None


WAIT = Quantity(
    WaitLimits,
    slower="slower_wait",
    where="in its wait",
    figures=(OtherTime("wait", "the time that it waits", lambda one: one.facts.get("wait_s"), noise=0.07),),
    contention=crowd,
    broken=waits,
    remarks=lambda case: [f"waits {len(case.rows)} times"],
)


def summed(cases, _head, limits):
    us = 1e6 * sum(one.case.after[0].median for one in cases)
    most = limits["all"].of_kind(AllLimits, "mine").max_us
    unknown = ("max_us cannot be judged",) * (most == 0)
    worse = ("more than max_us",) if most and us > most else ()
    idle = limits["all"].without_match(["mine"])
    return [RunSum("mine", "all of mine", f"{us:.1f} us", worse, unknown, leads=len(idle) > 0)], idle


HOOK = SimpleNamespace(
    pytest_perf_quantities=lambda: [[WAIT]], pytest_perf_sums=lambda: [[Summing({"all": AllLimits}, summed)]]
)


@pytest.fixture
def held_to(tmp_path):
    """Rules of a settings file."""

    def held_to(text=""):
        (tmp_path / "flashinfer-perf.toml").write_text(text)
        return verdict.read_rules(project_file.find(tmp_path), HOOK)

    return held_to


def compared(found, before=50e-6, after=50e-6, us=100.0, **more):
    return judge([run(row(wait_s=before))], [run(row(us=us, wait_s=after, **more))], found)


ASKED = '[thresholds]\n"*" = { slower_wait = "10%" }\n'


@pytest.mark.parametrize(
    ("after", "us", "asked", "expected"),
    [
        (50e-6, 100, ASKED, ("SAME", "within-threshold", 0)),
        (70e-6, 100, ASKED, ("SLOWER", "slower-wait", 1)),
        (30e-6, 100, ASKED, ("FASTER", "faster-wait", 0)),
        (56e-6, 100, ASKED, ("AMBIGUOUS", "not-significant", 2)),
        (70e-6, 100, "", ("SAME", "within-threshold", 0)),
        (70e-6, 130, ASKED, ("SLOWER", "slower", 1)),
        (None, 100, ASKED, ("SAME", "within-threshold", 0)),
    ],
)
def test_a_case_is_held_to_a_quantity_where_a_threshold_is_set(held_to, after, us, asked, expected):
    judgement = compared(held_to(asked), after=after, us=us)
    [judged] = judgement.cases
    assert (judged.verdict, judged.reason, judgement.exit_code) == expected
    assert (judged.effect_in("wait") is None) == (after is None)


def test_what_it_says_is_shown(held_to):
    [judged] = compared(held_to(ASKED), after=70e-6).cases
    assert judged.sentence == "slower in its wait alone: the time that it waits changed by more than slower_wait"
    assert (words.times(judged), words.changes(judged)) == ("50.00 us -> 70.00 us", "wait +40.00 %, time +0.00 %")
    assert list(words.remarks(judged)) == ["waits 2 times"]


def test_what_else_ran_meanwhile_is_its_own(held_to):
    [judged] = compared(held_to(ASKED), after=70e-6, crowded=True).cases
    assert (judged.verdict, judged.reason) == ("AMBIGUOUS", "busy")


@pytest.mark.parametrize(("after", "verdict", "code"), [(50e-6, "SAME", 1), (None, "INVALID", 2)])
def test_its_limits_are_those_of_the_settings_file(held_to, after, verdict, code):
    judgement = compared(held_to('[thresholds]\n"*" = { max_waits = 3 }\n'), after=after)
    assert (judgement.cases[0].verdict, judgement.exit_code) == (verdict, code)
    with pytest.raises(ProjectFileError, match=r"unknown name 'max_wait', did you mean max_waits\?"):
        held_to('[thresholds]\n"*" = { max_wait = 3 }\n')


@pytest.mark.parametrize(
    ("after", "reason"), [(70e-6, "slower-wait"), (50.5e-6, "within-threshold"), (None, "no-figure")]
)
def test_it_may_be_all_that_is_judged(held_to, after, reason):
    [judged] = compared(replace(held_to(), quantity="wait"), after=after, us=300.0).cases
    assert judged.reason == reason


def test_a_quantity_that_nobody_has_is_named(held_to):
    with pytest.raises(FlashinferPerfError, match=r"nothing is judged by wat: unknown name 'wat', did you mean wait\?"):
        compared(replace(held_to(), quantity="wat"))


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("", "all of mine: 100.0 us", 0),
        ('[all]\n"mine" = { max_us = 99 }\n', "WORSE all of mine: 100.0 us; more than max_us", 1),
        ('[all]\n"mine" = { max_us = 0 }\n', "INVALID all of mine: 100.0 us; max_us cannot be judged", 2),
        ('[all]\n"yours" = { max_us = 9 }\n', "all of mine: 100.0 us", 0),
    ],
)
def test_a_sum_is_judged_and_shown(held_to, text, line, code):
    judgement = compared(held_to(text))
    assert judgement.exit_code == code
    assert line in list(words.lines(judgement))
    assert ("yours" in words.notes(judgement)) == ("yours" in text)


def test_a_section_that_nobody_has_is_named(held_to):
    with pytest.raises(ProjectFileError, match=r"sections: unknown name 'al', did you mean all\?"):
        held_to("[al]\n")
