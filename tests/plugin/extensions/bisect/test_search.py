"""The search of a bisection, on made-up answers: planted changes, releases, points that cannot be measured."""

import commits
import gate_acceptance as simulated
import made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.extensions.bisect.bisection import (
    TRIES,
    NoDifferenceError,
    PointError,
    Question,
    RevisionSearch,
)
from pytest_flashinfer_perf.extensions.bisect.comparing import Answers, Times
from pytest_flashinfer_perf.extensions.bisect.histories import GitHistory, PointVerdict, Releases, git
from pytest_flashinfer_perf.extensions.host.host_gate import QUANTITY
from pytest_flashinfer_perf.gate.verdict import Rules
from pytest_flashinfer_perf.rows import run_file

KERNELS = simulated.even(3, 0.002)
VERSIONS = Releases(tuple(f"1.{number}" for number in range(17)))


class Levels:
    """A replayed instrument over releases: each case's time by version, as a factor of the first."""

    def __init__(self, levels, broken=()):
        self.levels, self.broken, self.asked = levels, broken, []
        self.rng = simulated.random.Random(7)

    def __call__(self, question, side, nth, cases):
        point = question.point(side)
        self.asked.append((question.stage, point, nth))
        if point in self.broken:
            raise PointError(point, "it is not installed")
        number = VERSIONS.versions.index(point)
        chosen = [kernel for kernel in KERNELS[: len(self.levels)] if cases is None or kernel.name in cases]
        changes = {f"case-{nth}": of_case[number] - 1 for nth, of_case in enumerate(self.levels)}
        return simulated.process(chosen, self.rng, changes)

    def search(self, sign=1):
        return RevisionSearch(VERSIONS, Times(self, simulated.rules(), lambda *_: None, sign)).run()


class OnHost(Levels):
    """One case, whose times on the GPU, to enqueue and to plan change at places of their own."""

    def __call__(self, question, side, nth, _cases):
        number = VERSIONS.versions.index(question.point(side))
        gpu, enqueue, plan = (factors[number] * self.rng.gauss(1, 0.02) for factors in self.levels)
        host = {"host_us": 50 * enqueue, "rounds_us": [50 * enqueue] * 5, "references_us": [20.0] * 5, "waits": False}
        host |= {"plan_us": 90 * plan, "plans_us": [90 * plan] * 5, "plan_references_us": [20.0] * 5}
        return made.run(made.row(us=100 * gpu, host=host), source=f"{question.number}-{nth}-{side}")

    def search(self, quantity=None):
        rules = Rules(paired=True, quantity=quantity, quantities=(QUANTITY,))
        return RevisionSearch(VERSIONS, Times(self, rules, lambda *_: None)).run()


def changed(*changes):
    """Each change is a place and a factor from there on."""
    levels = [1.0] * 17
    for place, factor in changes:
        levels[place:] = [level * factor for level in levels[place:]]
    return levels


def step_at(place, factor=1.2):
    return changed((place, factor))


@pytest.mark.parametrize(
    ("changes", "sign", "found"),
    [
        ([(3, 1.2), (9, 0.9)], 1, {"1.3"}),
        ([(3, 1.2), (9, 0.6)], -1, {"1.9"}),
        ([(3, 1.2), (7, 1 / 1.2), (11, 1.2)], 1, {"1.3", "1.11"}),
    ],
)
def test_a_change_in_the_direction_that_is_asked_for_is_found_among_others(changes, sign, found):
    [trail] = Levels([changed(*changes)]).search(sign)
    assert trail.is_located
    assert set(trail.suspects) <= found


def test_a_search_in_releases_skips_what_cannot_be_installed():
    trails = {trail.case: trail for trail in Levels([step_at(5), step_at(12)], broken={"1.8", "1.11"}).search()}
    assert (trails["case-0"].suspects, trails["case-0"].is_located) == (("1.5",), True)
    assert trails["case-1"].suspects == ("1.11", "1.12")
    assert trails["case-1"].verified
    assert not trails["case-1"].is_located


@pytest.mark.parametrize(("quantity", "found"), [(None, "1.8"), ("host", "1.5"), ("plan", "1.12")])
def test_each_time_of_a_call_is_searched_for_by_itself(quantity, found):
    [trail] = OnHost([step_at(8), step_at(5, 2.0), step_at(12, 2.0)]).search(quantity)
    assert (trail.suspects, trail.is_located) == ((found,), True)
    shown = {None: "time", "host": "50.", "plan": "90."}[quantity]
    assert shown in trail.verified.sentence


def test_a_time_that_nobody_measured_is_not_searched_for():
    rules = Rules(paired=True, quantity="plan", quantities=(QUANTITY,))
    with pytest.raises(
        NoDifferenceError, match=r"it is unclear whether the ends differ .*\n.*INVALID: no-figure: the time to"
    ):
        RevisionSearch(
            VERSIONS,
            Times(Levels([step_at(3)]), rules, lambda *_: None),
        ).run()


def test_what_crept_blames_nobody():
    crept = [1.012**number for number in range(17)]
    [trail] = Levels([crept]).search()
    assert trail.verified is None
    assert len(trail.cleared) == TRIES


def test_an_innocent_release_is_cleared_and_the_search_goes_on():
    class Hot(Levels):
        """The first time that 1.8 is looked at, something else slows it down."""

        def __call__(self, question, side, nth, cases):
            hot = question.stage == "search" and question.point(side) == "1.8" and question.number == 2
            levels, self.levels = self.levels, [[1.2] * 17] if hot else self.levels
            try:
                return super().__call__(question, side, nth, cases)
            finally:
                self.levels = levels

    [trail] = Hot([step_at(12)]).search()
    assert [point for point, _ in trail.cleared] == ["1.8"]
    assert (trail.suspects, trail.is_located) == (("1.12",), True)


def test_a_point_that_stops_being_measured_at_the_good_end_ends_the_search():
    class Gone(Levels):
        def __call__(self, question, side, nth, cases):
            if question.stage == "search" and side == "base":
                raise PointError(question.base, "the GPU is gone")
            return super().__call__(question, side, nth, cases)

    with pytest.raises(PointError, match="the GPU is gone"):
        Gone([step_at(3)]).search()


@given(st.integers(1, 16), st.sets(st.integers(1, 15)))
def test_releases_narrow_down_to_the_change(place, broken):
    answers = {}
    while (looked := VERSIONS.next(answers)).point is not None:
        assert looked.point not in answers
        number = VERSIONS.versions.index(looked.point)
        answers[looked.point] = PointVerdict.SKIP if number in broken else PointVerdict(int(number >= place))
    suspects = [VERSIONS.versions.index(point) for point in looked.suspects]
    assert place in suspects
    assert set(suspects[:-1]) <= broken
    assert VERSIONS.parents(looked.suspects) == [VERSIONS.versions[suspects[0] - 1]]


class Checked:
    """What a process says of answers by version: right, wrong, or nothing."""

    def __init__(self, **by_version):
        self.by_version = by_version
        self.processes = 0

    def __call__(self, question, side, nth, _cases):
        self.processes += 1
        said = self.by_version[question.point(side).replace(".", "_")]
        said = said[nth % len(said)]
        stats = {"median": 1, "mean": 1, "stddev": 0, "iqr": 0, "rounds": 1}
        row = {"name": "t", "fullname": "t.py::t", "stats": stats}
        row["extra_info"] = {"case": "own/t", "status": "ok", "instrument": "wall", "refcheck": said}
        failed = [{"case": "own/t", "outcome": "failed", "reason": "Failed: wrong answer: output 0"}]
        is_row = said in ("passed", "not checked")
        beside = {"schema": 2, "unmeasured": failed if said == "wrong" else []}
        return run_file.parse({"benchmarks": [row] if is_row else [], "flashinfer_perf": beside}, f"{nth}")


def test_answers_are_read_as_a_run_writes_them(pytester):
    pytester.makepyfile(
        test_own="""
        import pytest, torch

        @pytest.mark.parametrize("factor", [1, 2, None])
        def test_own(perf, factor):
            x = torch.ones(8)
            perf.time(torch.neg, x, **({} if factor is None else {"reference": -x * factor}))
        """
    )
    arguments = ("--perf-iters=1", "--perf-device=cpu", "-p", "no:cacheprovider", "--benchmark-json=run.json")
    pytester.runpytest(*arguments).assert_outcomes(passed=2, failed=1)
    measured = Answers(lambda *_: run_file.read(pytester.path / "run.json"))
    found = measured(Question(1, "ends", "old", "new"))
    known = {case.rpartition("[")[2]: seen.right for (point, case), seen in measured.answers.items() if point == "new"}
    assert known == {"1]": True, "2]": False, "None]": None}
    assert [finding.answer for finding in found.values()].count(PointVerdict.UNCHANGED) == 1


def test_the_first_wrong_answer_is_found():
    right, wrong, unclear = ("passed",), ("wrong",), ("passed", "wrong")
    checked = Checked(v0=right, v1=right, v2=unclear, v3=wrong, v4=wrong)
    versions = Releases(("v0", "v1", "v2", "v3", "v4"))
    [trail] = RevisionSearch(versions, Answers(checked)).run()
    assert trail.suspects == ("v2", "v3")
    assert "wrong answer: output 0" in trail.verified.sentence
    assert checked.processes == 2 * 5
    with pytest.raises(NoDifferenceError, match=r"the ends do not differ .*\n  own/t: right"):
        RevisionSearch(Releases(("v0", "v1")), Answers(checked)).run()
    with pytest.raises(NoDifferenceError, match=r"it is unclear .*\n.*its answer is not compared: not checked"):
        RevisionSearch(Releases(("v0", "v1")), Answers(Checked(v0=right, v1=("not checked",)))).run()
    with pytest.raises(NoDifferenceError, match="not right to begin with: Failed: wrong answer"):
        RevisionSearch(Releases(("v0", "v1")), Answers(Checked(v0=wrong, v1=right))).run()


def test_a_merge_is_verified_against_each_parent_within_the_ends(tmp_path):
    folder = tmp_path / "repo"
    ids = commits.repository(folder, [{"level": str(number)} for number in range(4)])
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for branch, start in (("old", ids[0]), ("side", ids[2])):
        git(folder, "checkout", "--quiet", "-b", branch, start)
        git(folder, *name, "commit", "--quiet", "--allow-empty", "--message", branch)
    git(folder, "checkout", "--quiet", "main")
    git(folder, *name, "merge", "--quiet", "--no-edit", "side", "old")
    history = GitHistory(folder, ids[1], git(folder, "rev-parse", "main"))
    assert history.parents([history.bad]) == [ids[3], git(folder, "rev-parse", "side"), git(folder, "rev-parse", "old")]
    assert history.parents([ids[2]]) == [ids[1]]
