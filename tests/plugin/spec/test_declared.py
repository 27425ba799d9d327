"""Cases, selections, presets, roofs: what follows from the declaration of a routine, without running it."""

import re
import shlex
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.settings.project_file import Quarantined
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case, CaseOptions
from pytest_flashinfer_perf.spec.params import ParamError, Params, flag
from pytest_flashinfer_perf.spec.presets import Model, Presets, Spread, UnevenError, shared, split_name
from pytest_flashinfer_perf.spec.routine import (
    Cost,
    Peaks,
    Roofline,
    Routine,
    Shape,
    as_run,
    best_of,
    first_that_covers,
    naming_flags,
    roofline,
)


@dataclass(frozen=True)
class Wide(Params):
    ignores: ClassVar = ("old",)
    refuses: ClassVar = {"--never": "has no meaning here: leave it out"}
    m: int = flag("rows", letter="m", minimum=1, most=64)
    n: int = flag("columns", default=8, letter="n", minimum=1, most=64, spellings=("width", "n"))
    x_dtype: str = flag("type", default="bfloat16", choices=("bfloat16", "fp8_e4m3"))
    out_dtype: str | None = flag("type of the answer", default=None, same_as="x_dtype", letter="o")
    scale: float = flag("factor", default=1.0, letter="s", draw=(1.0,))
    causal: bool = flag("half of it", default=False, letter="causal")


def declared(name="copy", family="own", **more):
    """A routine of three fields and two backends."""
    made = Routine(name, family, Wide, *[None] * 6, cuda_graph=True, aliases={"former": "fast"}, **more)
    made.backend("fast", api="", runs_as="quick")(lambda *_: None)
    made.backend("slow")(lambda *_: None)
    return made


COPY = declared()
ROUTINES = {"copy": COPY, "other": declared("other"), "far": declared("far", "else")}


def one(line):
    [made] = cases.parse(shlex.split(line), ROUTINES).cases()
    return made


def test_a_case_says_what_it_is():
    case = one("-R copy --m 4 --n 16 --causal --backends former --random_seed 3 --case_tag T -n 5 -vv")
    assert (case.backend_name, case.id, case.params.n) == ("fast", "m4-n16-causal-fast", 16)
    assert case.words == shlex.split(
        "--routine copy --backends fast --m 4 --width 16 --causal --random_seed 3 --case_tag T --num_iters 5 -vv"
    )
    assert case.repro == f"pytest {shlex.quote('--perf-case=' + shlex.join(case.words))}"
    identity = case.identity
    assert (identity.case, identity.family, identity.shape) == ("copy/m4-n16-causal-fast", "own", "m4-n16-causal")
    assert (identity.backend, identity.case_tag, identity.repro) == ("fast", "T", case.repro)
    assert case.json_params == {
        "routine": "copy", "backend": "fast", "m": 4, "n": 16, "x_dtype": "bfloat16",
        "out_dtype": "bfloat16", "scale": 1.0, "causal": True,
    }  # fmt: skip
    assert case.marks == {**case.params.as_dict(), "routine": "copy", "backend": "fast", "model": None, "scale": "1.0"}
    assert case.keywords == {"copy", "own", "fast", "quick", "former", "bfloat16", "bf16"}
    assert (replace(case, nth=2).id, replace(case, nth=1).id) == ("m4-n16-causal-fast-2", "m4-n16-causal-fast")
    tuned = replace(case, options=CaseOptions(autotune=True))
    assert (case.autotunes, tuned.autotunes, tuned.id) == (False, True, f"{case.id}-autotune")


def test_a_model_is_in_the_name_and_not_what_it_settles():
    case = Case(COPY, Shape(Wide(m=4, n=16), Model("llama-tp2", {"n": 16})), "slow")
    assert (case.id, case.marks["model"]) == ("llama-tp2-m4-slow", "llama-tp2")
    assert "llama-tp2" in case.keywords


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--routine copy", "the following arguments are required: --m"),
        ("--routine copy --m 0", "m: must be at least 1, got 0"),
        ("--routine copy --m 4 --heigth 3", "unknown flag --heigth"),
        ("--routine copy --m 4 --widht 3", "unknown flag --widht (did you mean --width?)"),
        ("--routine copy --m 4 --never", "--never has no meaning here: leave it out"),
        ("--routine copy --m 4 loose", "'loose' belongs to no flag"),
        ("--routine copy --m 4 --backends quick", "backends: unknown name 'quick'"),
        ("--routine copy --m 4 --random_seed -9999999999999999999", "a whole number of at most 64 bits"),
        ("--routine copy --m 4 --num_iters 0", "num_iters: must be at least 1, got 0"),
        ("--routine copy --m 4 --dry_run_iters -1", "dry_run_iters: must be at least 0, got -1"),
        ("--routine kopy --m 4", "routine: unknown name 'kopy', did you mean copy?"),
        ("--rutine copy", "unknown flag --rutine (did you mean --routine?)"),
    ],
)
def test_a_line_that_is_wrong_says_where(line, sentence):
    with pytest.raises(ParamError, match=re.escape(sentence)):
        cases.parse(shlex.split(line), ROUTINES).cases()


def test_a_seed_in_python_is_held_to_the_same_bound():
    with pytest.raises(ParamError, match="seed must be a whole number of at most 64 bits, got 'x'"):
        Case(COPY, Shape(Wide(m=4)), "fast", seed="x")


def test_flags_are_abbreviated_and_ignored_as_upstream_does():
    assert one("--routine copy --m 4 --wid 16 --old 3 --x_dtype BFLOAT16 --backends slow").words_beside == shlex.split(
        "--m 4 --width 16"
    )
    assert flags.expanded(["--ca=1", "--c", "-n", "x"], ["--causal", "--cold"]) == ["--causal=1", "--c", "-n", "x"]
    with pytest.raises(ParamError, match="No closing quotation"):
        flags.split("--m 'x")
    with pytest.raises(ParamError, match="the line has 100,001 characters"):
        flags.split("x" * 100_001)
    assert flags.unknown("--routine", ["--routine"]) == "--routine belongs to a command, and not to the line of a case"


def test_options_of_a_line_change_how_its_case_is_measured():
    gpu, cpu = SimpleNamespace(is_gpu=True), SimpleNamespace(is_gpu=False)
    options = CaseOptions(num_iters=5, dry_run_iters=0, no_cuda_graph=True, use_cuda_events=True, verbose=2)
    assert options.words == shlex.split("--num_iters 5 --dry_run_iters 0 --no_cuda_graph --use_cuda_events -vv")
    assert options.applied_to(Measuring(iters=9), gpu) == Measuring("events", "off", iters=5, warmup=0)
    assert options.applied_to(Measuring(iters=9), cpu) == Measuring("auto", "off", iters=5, warmup=0)
    assert CaseOptions().applied_to(Measuring(iters=9), gpu) == Measuring(iters=9)
    assert CaseOptions(allow_output_mismatch=True).applied_to_checking(Checking()) == Checking(
        allow_output_mismatch=True
    )
    assert CaseOptions().applied_to_checking(Checking("off")) == Checking("off")


@pytest.mark.parametrize(
    ("line", "selected"),
    [
        ("copy/*", True),
        ("copy/m4-*-fast", True),
        ("other/*", False),
        ("--routine copy", True),
        ("--routine other", False),
        ("--m 4 --causal", True),
        ("--m 5", False),
        ("--no-causal", False),
        ("--backends former slow", True),
        ("--backends slow", False),
    ],
)
def test_cases_are_selected_by_a_glob_or_by_flags(line, selected):
    case = one("--routine copy --m 4 --width 16 --causal --backends fast")
    assert cases.selects(line, case, ROUTINES) is selected
    entry = Quarantined(line, "hangs", "x")
    assert cases.quarantined(case, [entry], ROUTINES) == (entry if selected else None)


def test_a_kind_of_routine_is_named_by_its_own_flag():
    class Planted(Routine):
        named_by = ("--planted",)

    planted = Planted(**{f.name: getattr(ROUTINES["copy"], f.name) for f in fields(Routine)})
    assert planted.named_by in naming_flags()
    case = cases.parse_of(planted, ["--planted", "copy", "--m", "4", "--width", "16", "--backends", "fast"], ()).case(
        "fast"
    )
    assert cases.name_in(case.words) == "copy"
    assert case.words[:2] == ["--planted", "copy"]
    for line, selected in (("--planted copy --m 4", True), ("--planted other", False), ("--routine far", False)):
        assert cases.selects(line, case, ROUTINES) is selected
    assert not cases.selects("--planted copy", one("--routine copy --m 4 --width 16 --backends fast"), ROUTINES)


def test_what_selects_no_routine_is_known():
    chosen = ("copy/x", "nothing/*", "--routine far", "*", "c?py")
    assert [cases.selects_no_routine(line, ROUTINES) for line in chosen] == [False, True, False, False, False]
    with pytest.raises(ParamError, match="unknown name 'near'"):
        cases.selects_no_routine("--routine near", ROUTINES)


# Models on several GPUs.

LAYERS = Presets({"big": 8, "odd": 6}, lambda heads, over: {"heads": shared(heads, over.tp, "heads")})


def test_models_are_shared_where_they_divide_evenly():
    assert [(model.name, model.parameters["heads"]) for model in LAYERS.everywhere()] == [
        ("big", 8), ("big-tp2", 4), ("big-tp4", 2), ("big-tp8", 1), ("odd", 6), ("odd-tp2", 3),
    ]  # fmt: skip
    with pytest.raises(UnevenError, match="odd has 6 heads, which 4 GPUs cannot share evenly"):
        LAYERS("odd", tp=4)
    model = LAYERS("big", 2, 4, 8)
    assert (model.name, list(model.batches(1, 2, 16, 17))) == ("big-tp2-dp4-ep8", [1, 4])


@given(st.sampled_from(["llama-3.1-70b", "x-tp0", "a-b"]), st.integers(1, 99), st.integers(1, 99), st.integers(1, 9))
def test_a_name_is_split_as_it_was_made(name, tp, dp, ep):
    over = Spread(tp, dp, ep)
    assert split_name(name + over.suffix) == (name, {w: n for w, n in over._asdict().items() if n > 1})


def test_a_sweep_has_the_shapes_of_all_models():
    routine = declared()
    routine.tier("smoke")(lambda: [Shape(Wide(m=1))])
    assert list(routine.shapes_of_model("big", Spread())) == []
    routine.sweep(LAYERS)(lambda model: [Shape(Wide(m=model.parameters["heads"]), model)])
    assert [shape.id for shape in routine.tiers["full"]()][:3] == ["big-m8", "big-tp2-m4", "big-tp4-m2"]
    assert [shape.id for shape in routine.shapes_of_model("odd", Spread(2))] == ["odd-tp2-m3"]
    assert list(routine.shapes_of_model("unknown", Spread())) == []
    assert [shape.params.m for shape in routine.tiers["smoke"]()] == [1]
    assert (routine.mark, routine.backend_named("former").name, routine.backend_named("none")) == ("own", "fast", None)


def test_what_a_routine_does_not_declare_is_nothing():
    assert (COPY.read(None, None, (1,)), COPY.described(None, None, ()), COPY.changed(None)) == ((1,), {}, ())
    full = declared(decoded=lambda _p, outputs: outputs * 2, facts=lambda p, _x: {"p": p})
    assert (full.read(None, None, (1,)), full.described(7, None, ())) == ((1, 1), {"p": 7})
    assert list(COPY.backends["slow"].limits(None, "slow", None)) == []


# The roof.

PEAKS = Peaks(100.0, {"bfloat16": 1000.0, "float32": 10.0, "tf32": 50.0}, "measured")


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (Cost(500, 10, "bfloat16"), Roofline(50.0, "compute")),
        (Cost(500, 80, "bfloat16"), Roofline(80.0, "memory")),
        (Cost(0, 80, "bfloat16"), Roofline(80.0, "memory")),
        (Cost(0, 80, "fp4"), Roofline(80.0, "memory")),
        (Cost(500, 80, "fp4"), Roofline(80.0, "memory?")),
        (Cost(500, 0, "fp4"), None),
        (Cost(500, 0, "bfloat16"), Roofline(50.0, "compute")),
        (Cost(0, 0, "bfloat16"), None),
    ],
)
def test_the_share_of_the_roof_is_the_larger_of_two(cost, expected):
    assert roofline(cost, 1.0, PEAKS) == expected
    assert roofline(cost, 1.0, None) is None
    if expected:
        assert roofline(cost, 2.0, PEAKS).sol_pct == pytest.approx(expected.sol_pct / 2)


def test_products_of_fp32_that_are_too_fast_for_it_are_tf32():
    cost = Cost(100, 1, "float32", inferred=True)
    assert as_run(cost, 1.0, PEAKS).dtype == "tf32"
    assert as_run(cost, 10.0, PEAKS).dtype == "float32", "just as fast as fp32 is"
    assert as_run(replace(cost, inferred=False), 1.0, PEAKS).dtype == "float32"
    assert as_run(cost, 1.0, None) is cost
    assert as_run(replace(cost, dtype="bfloat16"), 1.0, PEAKS).dtype == "bfloat16"


def test_the_roof_that_covers_a_type_comes_first_and_the_best_has_the_larger_of_each():
    other = Peaks(200.0, {"fp4": 9.0, "float32": 5.0}, "datasheet")
    fp4 = Cost(1, 1, "fp4")
    assert first_that_covers(fp4, [PEAKS, other]) is other
    assert first_that_covers(Cost(1, 1, "int8"), [PEAKS, other]) is PEAKS
    assert first_that_covers(fp4, []) is None
    best = best_of([PEAKS, other])
    assert best == Peaks(200.0, {**PEAKS.flops_per_s, "fp4": 9.0}, "larger")
    assert best_of([]) is None
