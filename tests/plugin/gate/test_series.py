"""A case over many runs, of made-up rows."""

import math

import pytest
from made import row, run

from pytest_flashinfer_perf.gate import series


def rows(*times, **said):
    return [run(row(us=us, **said)).rows[0] for us in times]


def test_a_row_counts_if_it_is_sound_and_measured():
    sound, wrong, busy = (
        rows(100.0, **said)[0]
        for said in ({}, {"status": "wrong"}, {"contention": {"seconds": 1.0, "cores": 2, "waited": 0.7, "taken": 0.8}})
    )
    assert [series.counts(one) for one in (sound, wrong, busy)] == [True, False, False]


def test_what_failed_in_a_run_is_named_with_its_reason():
    failed = run(row(), unmeasured=[{"case": "b", "outcome": "failed", "reason": "wrong at 3"}])
    assert list(series.failures(failed)) == [("b", "failed: made: wrong at 3")]


def test_series_differ_by_how_they_were_measured():
    cold, warm = (run(row(cold_l2=how)) for how in ("rotate", "none"))
    assert series.conditions(cold, cold.rows[0]) != series.conditions(warm, warm.rows[0])


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({}, {"time"}),
        ({"busy": 60.0, "cuda_graph": False}, {"time", "busy"}),
        ({"busy": 60.0}, {"time"}),
        ({"bound": "compute", "cycles": 160_000.0, "sm_ghz": 1.6}, {"time", "cycles"}),
    ],
)
def test_a_case_has_the_figures_by_which_it_is_judged(said, known):
    [made] = rows(100.0, **said)
    assert {name for name, value in series.figures_of(made).items() if value is not None} == known


def test_a_change_between_levels_is_as_sure_as_they_are_quiet_and_unlike():
    before, after = [100.0, 101.0, 99.0], [110.0, 111.0, 109.0]

    def effect(**said):
        return series.between("time", before, after, **{"sd": 0.01, "alike": 0.0, "df": 20.0, **said})

    assert effect().change == pytest.approx(math.log(1.1), rel=0.01)
    assert [series.is_sure(one, 1, looks=3) for one in (effect(), effect(sd=0.2), effect(alike=0.99))] == [
        True,
        False,
        False,
    ]
    assert not series.is_sure(effect(), -1, looks=3)
    assert series.deviation(rows(*before), "time") == pytest.approx(0.01, rel=0.01)
