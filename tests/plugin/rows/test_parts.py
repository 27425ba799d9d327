"""Parts of a row that extensions declare: read by their types, written beside the row's own fields, kept if unknown."""

from dataclasses import dataclass, replace
from typing import Annotated

import pytest
from made import row, run, typed

from pytest_flashinfer_perf.rows import fields, parts
from pytest_flashinfer_perf.rows.fields import FieldError
from pytest_flashinfer_perf.rows.parts import Parts
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import RunError


@dataclass(frozen=True)
class Heat:
    celsius: float
    sensors: tuple[str, ...] = ()

    @property
    def conditions(self):
        return f"by {len(self.sensors)} sensors"


HOT = {"celsius": 81.5, "sensors": ["edge"]}


@pytest.fixture
def declared(monkeypatch):
    monkeypatch.setattr(parts, "DECLARED", {})
    monkeypatch.setattr("pytest_flashinfer_perf.rows.row.DECLARED", parts.DECLARED)
    return lambda: parts.declare([{"heat": Annotated[Heat | None, "how hot it was"]}])


def test_a_declared_part_is_read_by_its_type_and_written_as_it_stood(declared):
    declared()
    hot, cold = run(row(heat=HOT), row("other")).rows
    assert (hot.part("heat", Heat), cold.part("heat", Heat)) == (Heat(81.5, ("edge",)), None)
    assert (hot.extra_info()["heat"], cold.extra_info()["heat"]) == (HOT, None)
    assert "heat" not in hot.facts
    assert (hot.conditions, cold.conditions) == (("by 1 sensors",), ())


def test_what_does_not_fit_its_type_names_the_file_and_the_field(declared):
    declared()
    with pytest.raises(RunError, match=r"^made: benchmark 0 \(.*\): heat: celsius must be a number, got 'high'$"):
        run(row(heat={"celsius": "high"}))
    with pytest.raises(RunError, match=r"heat must be an object, got 7$"):
        run(row(heat=7))


def test_a_part_that_nobody_declares_is_kept_and_can_be_asked_for(declared):
    [hot] = run(row(heat=HOT)).rows
    assert (hot.extra_info()["heat"], hot.part("heat", Heat)) == (HOT, Heat(81.5, ("edge",)))
    declared()
    assert hot.extra_info()["heat"] == HOT


@pytest.mark.parametrize("is_known", [True, False], ids=["declared", "unknown"])
def test_parts_travel_between_processes(declared, is_known):
    if is_known:
        declared()
    sent = replace(typed(), parts=Parts(heat=Heat(20.0)))
    got = fields.read(Row, fields.written(sent), "report")
    assert got.part("heat", Heat) == Heat(20.0)
    assert isinstance(got.parts["heat"], Heat) == is_known
    assert got.extra_info()["heat"] == {"celsius": 20.0, "sensors": []}
    with pytest.raises(FieldError, match="report: parts must be an object, got 3"):
        fields.read(Row, {**fields.written(sent), "parts": 3}, "report")


@pytest.mark.usefixtures("declared")
def test_two_extensions_cannot_have_one_part():
    with pytest.raises(RuntimeError, match="two extensions add heat to a row"):
        parts.declare([{"heat": Heat}, {"heat": int}])
