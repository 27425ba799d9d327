"""What values options and settings may have, what is said of others, and how settings are changed by what is asked."""

import argparse
import itertools
import math
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.settings import option as options
from pytest_flashinfer_perf.settings import usage
from pytest_flashinfer_perf.settings.option import (
    LIMIT,
    SECONDS,
    SEED,
    TIMING,
    bounds_of,
    one_of,
    option,
    options_of,
    setting,
    values_of,
    whole,
)
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, MeasuringError, Settings


@pytest.mark.parametrize(
    ("bound", "text", "value"),
    [
        (whole(1), "1", 1),
        (whole(0), "0", 0),
        (SECONDS, "2.5", 2.5),
        (SEED, "-9223372036854775808", -(2**63)),
        (SEED, "18446744073709551615", 2**64 - 1),
        (one_of("on", "off"), "off", "off"),
    ],
)
def test_a_value_within_its_bound_is_read(bound, text, value):
    assert bound(text) == value


@pytest.mark.parametrize(
    ("bound", "texts", "words"),
    [
        (whole(1), ["0"], "a whole number of at least 1"),
        (whole(0), ["-1", "1.0"], "a whole number of at least 0"),
        (SECONDS, ["-1", "inf", "nan", "soon"], "a finite number of seconds of at least 0"),
        (SEED, ["18446744073709551616", "-9223372036854775809"], "a whole number of at most 64 bits"),
        (LIMIT, ["-1", "soon", "nan", "inf"], "a number of seconds, 0 for no limit"),
        (one_of("on", "off"), ["of"], "one of on, off"),
    ],
)
def test_another_value_is_refused_with_what_it_must_be(bound, texts, words):
    for text in texts:
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


@dataclass
class Declared:
    names: tuple[str, ...] = setting(TIMING, "--perf-names", action="append", default=[])
    plain: int = 3


def test_the_values_of_options_are_those_of_their_fields():
    assert Declared() == Declared(names=(), plain=3)
    assert values_of(Declared, argparse.Namespace(perf_names=["a", "b"])) == {"names": ("a", "b")}


# Settings.


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("iters", [0, -1, True, 2.0], "must be a whole number of at least 1"),
        ("warmup", [-1, 0.5], "must be a whole number of at least 0"),
        ("max_time", [math.nan, math.inf, -1, "abc", None], "must be a finite number of seconds of at least 0"),
        ("cuda_graph", ["yes", True], "must be one of auto, on, off"),
        ("cold_l2", ["rot"], "must be one of rotate, flush, none"),
        ("instrument", ["foo", None], "must be one of auto, cupti, events, wall"),
        ("peaks", ["x"], "must be one of measured, datasheet"),
    ],
)
def test_a_way_to_measure_has_values_that_it_can_have(name, values, sentence):
    for value in values:
        for made in (lambda: Measuring(**{name: value}), lambda: Measuring().changed_by({name: value})):  # noqa: B023
            with pytest.raises(MeasuringError) as error:
                made()
            assert str(error.value) == f"{name} {sentence}, got {value!r}"


def test_a_way_to_measure_is_named_as_it_is_spelled():
    with pytest.raises(ValueError, match=r"^measuring: unknown name 'itres', did you mean iters\?"):
        Measuring().changed_by({"itres": 3})


@given(st.sampled_from(sorted(bounds_of(Measuring))), st.text() | st.integers().map(str) | st.floats().map(str))
def test_text_and_value_are_judged_alike(name, text):
    """By the option's own type, and in Python by the value that it reads."""
    bound, refused = bounds_of(Measuring)[name], None
    try:
        value = bound(text)
        assert getattr(Measuring(**{name: value}), name) == value
    except argparse.ArgumentTypeError as error:
        refused = str(error)
    assert refused in (None, bound.refusal(text))


def test_numbers_of_other_libraries_are_numbers():
    assert Measuring(iters=np.int64(3), max_time=np.float64(0.5)).iters == 3


def test_what_an_option_offers_a_call_may_ask_for():
    for one in itertools.chain.from_iterable(options_of(Measuring).values()):
        for choice in one.keywords.get("choices", ()):
            assert Measuring(**{one.dest.removeprefix("perf_"): choice})


def test_a_call_may_ask_for_some_of_it_or_for_all():
    run = Measuring(iters=7, cold_l2="none")
    assert run.changed_by(None) is run
    assert run.changed_by({"iters": None, "warmup": 2}) == Measuring(iters=None, warmup=2, cold_l2="none")
    assert run.changed_by(Measuring(peaks="datasheet")) == Measuring(peaks="datasheet")
    with pytest.raises(MeasuringError, match="must be a Measuring, or a dictionary of its fields, got 3"):
        run.changed_by(3)


def test_one_call_may_be_enough():
    assert Measuring(iters=9, cold_l2="none").of_one_call == Measuring(iters=1, warmup=0, cold_l2="none")
    assert Settings().project.path is None


def test_what_is_compared():
    assert [(Checking(how).off, Checking(how).only) for how in ("on", "off", "only")] == [
        (False, False),
        (True, False),
        (False, True),
    ]


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
