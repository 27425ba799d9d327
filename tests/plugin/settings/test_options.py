"""What values options and settings may have, what is said of others, and how settings are changed by what is asked."""

import argparse
import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.settings import option as options
from pytest_flashinfer_perf.settings import planting, usage
from pytest_flashinfer_perf.settings.option import SECONDS, SEED, one_of, option, whole
from pytest_flashinfer_perf.settings.planting import PlantError
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, MeasuringError, Settings


@pytest.mark.parametrize(
    ("bound", "text", "value"),
    [
        (whole(1), "1", 1),
        (whole(0), "0", 0),
        (SECONDS, "0", 0.0),
        (SECONDS, "2.5", 2.5),
        (SEED, "-9223372036854775808", -(2**63)),
        (SEED, "18446744073709551615", 2**64 - 1),
        (one_of("on", "off"), "off", "off"),
    ],
)
def test_a_value_within_its_bound_is_read(bound, text, value):
    assert bound(text) == value


@pytest.mark.parametrize(
    ("bound", "text", "words"),
    [
        (whole(1), "0", "a whole number of at least 1"),
        (whole(0), "-1", "a whole number of at least 0"),
        (whole(0), "1.0", "a whole number of at least 0"),
        (SECONDS, "-1", "a finite number of seconds of at least 0"),
        (SECONDS, "inf", "a finite number of seconds of at least 0"),
        (SECONDS, "nan", "a finite number of seconds of at least 0"),
        (SECONDS, "soon", "a finite number of seconds of at least 0"),
        (SEED, "18446744073709551616", "a whole number of at most 64 bits"),
        (SEED, "-9223372036854775809", "a whole number of at most 64 bits"),
        (one_of("on", "off"), "of", "one of on, off"),
    ],
)
def test_another_value_is_refused_with_what_it_must_be(bound, text, words):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        bound(text)
    assert str(error.value) == f"must be {words}, got {text!r}"


@given(st.one_of(st.booleans(), st.text(), st.none(), st.floats(), st.integers(-(10**400), 10**400)))
def test_a_number_is_finite_if_a_float_can_hold_it(value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    assert options.is_finite(value) == (is_number and 0 <= value <= sys.float_info.max)
    assert not whole(0).allows(True)


def test_an_option_is_declared_once_for_each_parser():
    parser = argparse.ArgumentParser()
    for one in (option("--perf-a-b", type=whole(1), default=3), option("--perf-c", action="store_true"), option("--d")):
        one.add_by(parser.add_argument)
        assert (getattr(parser.parse_args([]), one.dest), one.name) == (one.default, f"--{one.dest.replace('_', '-')}")
    assert vars(parser.parse_args(["--perf-a-b=5", "--perf-c"])) == {"perf_a_b": 5, "perf_c": True, "d": None}


# Settings.


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"iters": 0}, "iters must be a whole number of at least 1, got 0"),
        ({"iters": True}, "iters must be a whole number of at least 1, got True"),
        ({"warmup": -1}, "warmup must be a whole number of at least 0, got -1"),
        ({"max_time": math.inf}, "max_time must be a finite number of seconds of at least 0, got inf"),
        ({"max_time": None}, "max_time must be a finite number of seconds of at least 0, got None"),
        ({"cuda_graph": "maybe"}, "cuda_graph must be one of auto, on, off, got 'maybe'"),
        ({"itres": 3}, "measuring: unknown name 'itres', did you mean iters?*"),
    ],
)
def test_a_way_to_measure_has_values_that_it_can_have(values, sentence):
    with pytest.raises(MeasuringError) as error:
        Measuring().changed_by(values)
    assert str(error.value).startswith(sentence.rstrip("*"))


def test_a_call_may_ask_for_some_of_it_or_for_all():
    run = Measuring(iters=7, cold_l2="none")
    assert run.changed_by(None) is run
    assert run.changed_by({"iters": None, "warmup": 2}) == Measuring(iters=None, warmup=2, cold_l2="none")
    assert run.changed_by(Measuring(peaks="datasheet")) == Measuring(peaks="datasheet")
    with pytest.raises(MeasuringError, match="must be a Measuring, or a dictionary of its fields, got 3"):
        run.changed_by(3)


def test_a_test_is_planted_and_asked_once():
    settings = Settings(plants={"t.py::a": 0.5})
    run = Measuring(iters=9, plant=0.1)
    assert settings.of_test("t.py::a", run, once=False) == Measuring(iters=9, plant=0.5)
    assert settings.of_test("t.py::b", run, once=False) == run
    assert settings.of_test("t.py::b", run, once=True) == Measuring(iters=1, warmup=0, plant=0.1)
    assert settings.project.path is None


def test_what_is_compared():
    assert [(Checking(how).off, Checking(how).only) for how in ("on", "off", "only")] == [
        (False, False),
        (True, False),
        (False, True),
    ]


# The file of planted work.


def test_planted_seconds_are_read_as_they_were_written(tmp_path):
    planting.write(tmp_path / "plants.json", {"t.py::a": 0.25})
    assert planting.read(tmp_path / "plants.json") == {"t.py::a": 0.25}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", "must hold seconds by test id"),
        ('{"a": "x"}', "must hold seconds by test id"),
        ('{"a": 0}', "a: seconds must be above zero, got 0.0"),
        ('{"a": -1}', "a: seconds must be above zero, got -1.0"),
        ('{"a": 1e999}', ""),
        ("{", "must hold seconds by test id"),
    ],
)
def test_planted_seconds_that_are_none_name_the_file(tmp_path, text, sentence):
    path = tmp_path / "plants.json"
    path.write_text(text)
    with pytest.raises(PlantError) as error:
        planting.read(path)
    assert str(error.value).startswith(f"{path}: {sentence}")


# Errors of use.


def test_errors_in_what_a_user_wrote_end_pytest_with_their_sentence():
    with pytest.raises(pytest.UsageError, match=r"^this and that$"), usage.errors_of_use():
        raise FlashinferPerfError("this and that")
    with pytest.raises(pytest.UsageError, match="wrong"), usage.errors_of_use(KeyError):
        raise KeyError("wrong")
    with pytest.raises(ZeroDivisionError), usage.errors_of_use(KeyError):
        _ = 1 / 0


@pytest.mark.parametrize(("before", "after"), [(0, 4), (1, 1)])
def test_a_file_that_is_not_written_changes_a_good_end(before, after):
    session = SimpleNamespace(exitstatus=pytest.ExitCode(before))
    assert usage.not_written(session, "--x", OSError("full")) == "--x: not written: full"
    assert session.exitstatus == after
