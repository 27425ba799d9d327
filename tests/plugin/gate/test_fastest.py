"""The backends that share the first place of a shape."""

import random

import pytest
from made import placements, row

from pytest_flashinfer_perf.gate.effects import fastest
from pytest_flashinfer_perf.rows import row as rows_of


def measured(backend, us=10.0, data=None, **info):
    """Samples and cycles that scatter by one percent."""
    draw = random.Random(backend)
    cycles = us * 1.8e3
    known = {"cycles": cycles, "cycles_per_call": [cycles * draw.uniform(0.98, 1.02) for _ in range(30)]}
    known |= {"tb_per_sec": 4.0, "sol_pct": 50.0, "placements": placements(1e-6 * us, cycles), **info}
    made = row(backend, us, stddev=0.01, rounds=30, **known)
    samples = [1e-6 * us * draw.uniform(0.99, 1.01) for _ in range(30)] if data is None else data
    return {**made, "stats": {**made["stats"], "data": samples}}


def places(*rows):
    return [one.case for one in fastest([rows_of.read(one, "made") for one in rows])]


def scattered(row, share, field="data"):
    """The row with samples, or cycles, whose middle half is that share of the median wide."""
    holder = row["stats"] if field == "data" else row["extra_info"]
    centre = row["stats"]["median"] if field == "data" else row["extra_info"]["cycles"]
    holder[field] = [centre * (1 + share * (i - 14.5) / 14.5) for i in range(30)]
    return row


def clocked(backend, us, cycles):
    """With cycles that agree with each other."""
    return measured(backend, us=us, bound="compute", cycles=cycles, cycles_per_call=[cycles] * 30)


ALIKE = {
    "memory-bound, by 0.5 %": [measured("a", us=10.0), measured("b", us=10.05)],
    "by their own scatter": [scattered(measured("a", us=10.0), 0.2), scattered(measured("b", us=10.3), 0.2)],
    "without samples": [measured("a", us=10.0, data=()), scattered(measured("b", us=10.05), 0.01)],
    "in cycles": [clocked("a", 50.0, 90000), clocked("b", 54.5, 90250)],
    "by the scatter of cycles": [
        clocked("a", 50.0, 90000),
        scattered(clocked("b", 54.5, 92500), 0.2, "cycles_per_call"),
    ],
    "by the scatter of a short call's samples": [
        clocked("a", 10.0, 18000),
        scattered(clocked("b", 10.5, 18900), 0.2),
    ],
    "on a host's clock": [
        measured(b, us=us, instrument="wall", bound=None, cycles=None) for b, us in (("a", 10), ("b", 12))
    ],
}
APART = {
    "memory-bound, by 2 %": [measured("a", us=10.0), measured("b", us=10.2)],
    "in cycles": [clocked("a", 50.0, 90000), clocked("b", 50.5, 92000)],
    "on a host's clock": [
        measured(b, us=us, instrument="wall", bound=None, cycles=None) for b, us in (("a", 10), ("b", 14))
    ],
    "from what is invalid": [measured("a", us=10.0), measured("b", us=10.0, status="invalid")],
}


@pytest.mark.parametrize("rows", ALIKE.values(), ids=list(ALIKE))
def test_backends_that_cannot_be_told_apart_share_the_place(rows):
    assert places(*rows) == ["a", "b"]


@pytest.mark.parametrize("rows", APART.values(), ids=list(APART))
def test_backends_that_are_surely_apart_do_not(rows):
    assert places(*rows) == ["a"]


def test_one_backend_is_no_fastest():
    assert places(measured("a")) == []
