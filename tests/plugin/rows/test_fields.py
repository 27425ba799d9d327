"""Dataclasses from JSON by their types; what rows and tables say."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import row, run, typed

from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.rows import fields, formatting, scatter
from pytest_flashinfer_perf.rows.fields import FieldError


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True)
class Part:
    size: int
    name: str = "none"


@dataclass(frozen=True)
class Whole:
    part: Part
    ratio: float
    on: bool = True
    colour: Colour = Colour.RED
    way: Literal["a", "b"] = "a"
    pair: tuple[int, str] = (1, "x")
    samples: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    inner: Annotated[Part | None, "a part that may be null"] = None
    by_name: Mapping[str, Any] = field(default_factory=dict)


def whole(**more):
    return {"size": 3, "ratio": 1, **more}


def test_an_object_is_read_by_its_types_and_written_again():
    made = fields.read(Whole, whole(way="b", pair=[2, "y"], samples=[1, 2.5], inner={"size": 4}, other=1), "f")
    assert made == Whole(Part(3), 1, way="b", pair=(2, "y"), samples=(1, 2.5), inner=Part(4))
    assert fields.written(made)["inner"] == {"size": 4, "name": "none"}
    assert fields.read(Whole, {**fields.written(made), "size": 3}, "f") == made
    assert fields.value(tuple[Part, ...], [{"size": 1}, {"size": 2}], "f") == (Part(1), Part(2))
    assert fields.read(Whole, whole(name="\x1b[31m\n"), "f").part.name == "\x1b[31m\n", "any text is a name"
    assert fields.written({"a": [made.part, (1, None)]}) == {"a": [{"size": 3, "name": "none"}, [1, None]]}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "f must be an object, got []"),
        ({"ratio": 1}, "f lacks size"),
        (whole(size=True), "f: size must be a whole number, got True"),
        (whole(size="3"), "f: size must be a whole number, got '3'"),
        (whole(size=2**64 + 1), "f: size must be a whole number of at most 20 digits, got 18446744073709551617"),
        (whole(ratio="x"), "f: ratio must be a number, got 'x'"),
        (whole(ratio=10**400), "f: ratio must be a number of at most 308 digits, got 1000"),
        (whole(on=1), "f: on must be true or false, got 1"),
        (whole(colour="blue"), "f: colour must be one of red, got 'blue'"),
        (whole(way="c"), "f: way must be one of a, b, got 'c'"),
        (whole(pair=[1]), "f: pair must be a list, got [1]"),
        (whole(pair=[1, 2]), "f: pair[1] must be text, got 2"),
        (whole(samples=[1.0, None]), "f: samples[1] must be a number, got None"),
        (whole(counts=[1, 2**64 + 1]), "f: counts[1] must be a whole number of at most 20 digits"),
        (whole(samples="12"), "f: samples must be a list, got '12'"),
        (whole(inner={"size": None}), "f: inner: size must be a whole number, got None"),
    ],
)
def test_what_does_not_fit_names_its_field_on_one_line(values, sentence):
    with pytest.raises(FieldError) as error:
        fields.read(Whole, values, "f")
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_large_whole_numbers_become_the_floats_that_they_are():
    made = fields.read(Whole, whole(ratio=2**64 + 2**20, size=2**64), "f")
    assert (type(made.ratio), made.ratio, made.part.size) == (float, 2.0**64 + 2**20, 2**64)


def test_what_json_has_not_is_not_read():
    assert fields.parsed('{"a": [1e3]}') == {"a": [1000.0]}
    for name in ("NaN", "Infinity", "-Infinity"):
        with pytest.raises(ValueError, match=f"{name} is no number of JSON"):
            fields.parsed(f"[{name}]")
    with pytest.raises(FieldError, match=r"f must be a list, got \{\}"):
        fields.value(tuple[Part, ...], {}, "f")
    with pytest.raises(FieldError, match="f must be null"):
        fields.value(object, 3, "f")
    assert (fields.object_in({"a": None}, "a"), fields.object_in({}, "a")) == ({}, {})
    for where, sentence in (("", "a must be an object, got 3"), ("f", "f: a must be an object, got 3")):
        with pytest.raises(FieldError, match=f"^{sentence}$"):
            fields.object_in({"a": 3}, "a", where)
    assert fields.shown("x" * 100) == f"'{'x' * 59}..."


# Formatting.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.4123e-6, "1.412 us"),
        (33.4e-6, "33.40 us"),
        (999.96e-6, "1000. us"),
        (1e-3, "1.000 ms"),
        (1.0, "1.000 s"),
        (5e3, "5000. s"),
    ],
)
def test_durations_have_four_digits_and_their_unit(seconds, text):
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "-"), (1e5, "1e+05"), (99999.4, "99999"), (100.0, "100"), (99.94, "99.9"), (9.999, "10.00"),
     (0.1, "0.10"), (0.0999, "0.100"), (0.01, "0.010"), (0.0099, "0.0099"), (0.00099, "1e-03")],
)  # fmt: skip
def test_rates_fit_six_characters(value, text):
    assert formatting.rate(value) == text
    assert len(text) <= 6


def test_small_texts():
    assert (formatting.counted(1, "case"), formatting.counted(2, "case")) == ("1 case", "2 cases")
    assert formatting.some("abcdefg") == "a, b, c, d, e and 2 more"
    assert formatting.some("abcde") == "a, b, c, d, e"
    assert (formatting.spread(None), formatting.spread(0.0123)) == ("-", "1.2 %")
    assert formatting.shortened("k" * 64) == "k" * 64
    assert formatting.shortened("a" * 40 + "b" * 40) == "a" * 32 + "..." + "b" * 32
    assert formatting.last_lines(" a\nb\nc\n\n", 2) == "b\nc"
    assert formatting.as_markdown("a|b\n<i>*`&") == r"a\|b &lt;i&gt;\*\`&amp;"
    assert formatting.software({"torch": "2", "gpu": "H200", "cuda": None, "cudnn": 9}) == "torch 2, cudnn 9"
    assert list(formatting.grouped([3, 1, 5, 2], lambda n: n % 2)) == [(1, [3, 1, 5]), (0, [2])]


def test_lines_are_as_wide_as_the_terminal_and_go_on_behind_their_indent(monkeypatch):
    for columns, wide in (("39", formatting.WIDTH), ("40", 40), ("60", 60)):
        monkeypatch.setenv("COLUMNS", columns)
        assert formatting.width() == wide
    [first, second] = formatting.indented("word " * 15, 4)
    assert (first, second) == ("    " + "word " * 10 + "word", "      word word word word")
    counted = formatting.by_count(Counter(["few", *["many " * 12] * 12]))
    assert list(counted) == ["   12  " + "many " * 9 + "many", "       many many", "    1  few"]


def test_what_a_row_was_measured_by_is_a_line():
    [one] = run(row(routine="decode", device="cuda:0", cuda_graph=True, peaks="measured", fallback="x")).rows
    said = "decode on cuda:0 NVIDIA H200: cupti, cold L2 by rotation, CUDA graph (fallback), roof measured"
    assert formatting.provenance(one) == said
    plain = typed(cold_l2="odd", device="cpu", device_name="EPYC", instrument="wall")
    assert formatting.provenance(plain) == "own kernels on cpu EPYC: wall, L2 not known, roof not measured"
    names = [typed(backend="auto", resolved_backend=chosen) for chosen in (None, "auto", "sdpa", "fa3")]
    assert list(map(formatting.named, names)) == ["auto", "auto", "auto", "auto (fa3)"]


# Scatter of samples.


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=30))
def test_the_spread_is_the_deviation_over_the_mean(samples):
    assert scatter.spread(samples) == pytest.approx(statistics.stdev(samples) / statistics.fmean(samples))


def test_a_single_late_call_is_noise_to_a_gpu_and_not_to_the_hosts_clock():
    assert (scatter.spread([1.0]), scatter.is_noisy([1.0], "cupti")) == (None, False)
    late = [*[1.0] * 29, 3.0]
    assert (scatter.is_noisy(late, "cupti"), scatter.is_noisy(late, "wall")) == (True, False)
    wide = [1.0, 1.5] * 15
    assert (scatter.is_noisy(wide, "wall"), scatter.is_noisy([1.0, 1.01] * 15, "cupti")) == (True, False)
    assert scatter.median_error(0.2, 100) == pytest.approx(0.02 * math.sqrt(math.pi / 2) / 1.349)
    assert [scatter.is_measured(one) for one in (0.0, 1e-15, 2e-15, 1e15, math.inf, math.nan)] == [
        False, False, True, False, False, False,
    ]  # fmt: skip
    busy = Contention(seconds=1.0, cores=2, waited=0.9, load=6.0)
    assert scatter.noise("wall", busy) == "others used this machine: load 6 on 2 cores"
    assert scatter.noise("wall", Contention(seconds=1.0, cores=2)) == scatter.noise("wall")
    assert scatter.noise("cupti") == "the spread stayed above 5 %"
