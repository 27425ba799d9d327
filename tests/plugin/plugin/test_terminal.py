import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import placements, typed

from pytest_flashinfer_perf.plugin import cases, live_output, terminal
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.settings.settings import Settings
from pytest_flashinfer_perf.spec.case import Case

ROW = {
    "routine": "BatchDecodeWithPagedKVCacheWrapper",
    "backend": "fa2_tc",
    "resolved_backend": "fa2_tc",
    "shape": "llama-3.1-70b-b16-s1024",
    "case": "x",
    "device": "cuda:0",
    "device_name": "NVIDIA H200",
    "instrument": "cupti",
    "fallback": None,
    "cold_l2": "rotate",
    "cuda_graph": True,
    "peaks": "measured",
    "median": 33.4e-6,
    "spread": 0.014,
    "tflops": 16.1,
    "tb_per_sec": 2.01,
    "sol_pct": 46.8,
    "bound": "memory",
    "flops_dtype": "bfloat16",
    "status": "ok",
}


def shown(*changes, skips=()):
    rows = [typed(**{**ROW, **change}) for change in changes]
    return list(terminal.lines(rows, list(skips)))


numbers = st.fixed_dictionaries(
    {
        "median": st.floats(1e-7, 100),
        "spread": st.none() | st.floats(0, 9.99),
        "stopped": st.sampled_from(["precise", "wall time"]),
        "samples": st.integers(1, 300).map(lambda count: [1.0] * count),
        "tflops": st.none() | st.floats(0, 5000) | st.floats(0, 1e308),
        "tb_per_sec": st.none() | st.floats(0, 9.99) | st.floats(0, 1e308),
        "sol_pct": st.floats(0, 100) | st.floats(0, 1e308),
        "host_bound": st.none() | st.booleans(),
        "status": st.sampled_from(["ok", "noisy", "invalid"]),
        "bound": st.sampled_from(["memory", "memory?", "compute", None]),
    }
)


@given(numbers)
def test_a_row_fits_in_80_columns(drawn):
    row = {**drawn, "backend": "trtllm-native", "resolved_backend": "xqa"}
    assert all(len(line) <= 80 for line in shown(row, ROW))


@pytest.mark.parametrize(("columns", "wide"), [("140", 140), ("80", 80), ("20", 80)])
def test_the_table_is_as_wide_as_the_terminal(monkeypatch, columns, wide):
    """Names have what is left of it; one of a kernel without backends then needs no line of its own."""
    monkeypatch.setenv("COLUMNS", columns)
    own = "tests/kernels/test_norm.py::test_rmsnorm[4096]"
    alone = {"routine": None, "backend": None, "resolved_backend": None, "shape": None, "case": own}
    lines = shown({"fallback": "why " * 60, "status": "noisy"}, alone)
    assert wide - 8 < max(map(len, lines)) <= wide
    assert any(line.startswith(f"  {own} ") for line in lines) == (wide == 140)
    heading = next(line for line in lines if line.endswith(terminal.HEADINGS))
    figures = next(line for line in lines if "33.40 us" in line)
    assert heading.index("median") + len("median") == figures.index("us") + len("us")


def test_backends_stand_side_by_side_with_the_best_marked():
    lines = shown(
        {"backend": "fa2", "resolved_backend": "fa2", "median": 55e-6}, {}, {"backend": "auto", "median": 4e-5}
    )
    block = lines[lines.index("llama-3.1-70b-b16-s1024") + 1 :]
    assert [line[:16].strip() for line in block] == ["* fa2_tc", "auto (fa2_tc)", "fa2"]
    assert block[0] == "* fa2_tc                    33.40 us   1.4%     16.1   2.01   46.8 mem"


def test_backends_that_cannot_be_told_apart_are_both_marked():
    first = {"samples": [33.4e-6] * 9, "placements": placements(33.4e-6)}
    alike = {"backend": "cudnn", "median": 33.5e-6, "placements": placements(33.5e-6)}
    slower = {"backend": "fa2", "median": 36e-6, "placements": placements(36e-6)}
    assert [line[:1] for line in shown(first, alike, slower) if " us " in line] == ["*", "*", " "]


def test_an_invalid_row_is_never_the_best():
    lines = shown({"backend": "broken", "median": 1e-6, "status": "invalid"}, {})
    assert next(line for line in lines if "broken" in line).startswith("  broken")
    assert "INVALID" in next(line for line in lines if "broken" in line)
    assert next(line for line in lines if "33.40 us" in line).startswith("* ")
    assert any("1 INVALID: faster than this device can be" in line for line in lines)


def test_each_provenance_has_a_table_of_its_own():
    lines = shown({}, {"instrument": "events", "fallback": "measured with events, not cupti: why"})
    titles = [line for line in lines if line.startswith("BatchDecode")]
    assert len(titles) == sum(line.endswith(terminal.HEADINGS) for line in lines) == 2
    assert any("(fallback)" in line for line in lines)
    assert "WARNING: measured with events, not cupti: why" in lines


def test_a_row_whose_compute_roof_is_not_known_says_which_type_that_is():
    lines = shown({"bound": "memory?", "flops_dtype": "int8"}, {})
    assert "mem?: no compute roof is known for int8; %roof is of the memory's roof" in lines
    assert sum(line.endswith("46.8 mem?") for line in lines) == 1


def test_noise_comes_with_its_cure():
    assert any("--perf-iters" in line for line in shown({"status": "noisy"}))
    mixed = "\n".join(shown({"status": "noisy"}, {"status": "noisy", "instrument": "wall"}))
    assert "1 noisy: the spread stayed above 5 %; raise" in mixed
    assert "1 noisy: by the host's clock the median is not known to 5 %; raise" in mixed


def test_a_case_with_fewer_calls_than_usual_says_how_many():
    early = {"stopped": "wall time", "samples": [2.3] * 3}
    lines = shown(early, {**early, "samples": [70.0], "spread": None}, {"stopped": "precise", "samples": [1.0] * 30})
    assert [line.rsplit("mem", 1)[1].strip() for line in lines if line.endswith(("call", "calls", "mem"))] == [
        "3 calls",
        "1 call",
        "",
    ]
    assert "2 cases stopped early, after 1 to 3 calls: their wall time was up, 10 times" in lines


def test_skips_are_counted_by_reason():
    lines = shown({}, skips=["a", "b", "a"])
    assert "3 cases skipped" in lines
    assert "    2  a" in lines


XFAILS = "import pytest\n@pytest.mark.xfail(reason='a known bug')\ndef test_it(perf): assert False\n"


def test_what_failed_as_expected_is_counted_apart(session):
    done = session(test_own=XFAILS)
    done.says("1 case failed as expected", "    1  a known bug")
    assert "skipped" not in done.out


def test_a_missing_reference_is_the_tests_or_the_templates():
    unchecked = {"refcheck": "not checked"}
    lines = shown(unchecked, {**unchecked, "no_reference": "no reference: its template's fails"})
    assert "1 not checked: no reference was given, as perf.time takes it" in lines
    assert "1 not checked: no reference, for the reason in the row's no_reference" in lines
    asked_off = shown({"refcheck": "off", "no_reference": "no reference: its template's fails"})
    assert [line for line in asked_off if "not checked" in line] == ["1 not checked: --perf-refcheck=off"]


def test_reasons_that_differ_in_numbers_or_in_the_backend_are_one_line():
    on_a_cpu = [f"{name} needs an NVIDIA GPU, this run is on the CPU" for name in ("fa3", "cudnn", "fa3", "auto")]
    other = [f"cutlass needs compute capability {of}, this is 9.0" for of in ("10.0 or 10.3", "12.0+")]
    lines = shown({}, skips=[*on_a_cpu, *other, "torch needs 3 GiB: --backends torch measures it"])
    assert lines[lines.index("7 cases skipped") + 1 :] == [
        "    4  needs an NVIDIA GPU, this run is on the CPU (fa3, cudnn, auto)",
        "    2  cutlass needs compute capability ..., this is 9.0",
        "    1  torch needs 3 GiB: --backends torch measures it",
    ]


def test_what_a_busy_machine_spoiled_is_one_line_with_a_cure_for_it():
    seen = {"seconds": 1.0, "cores": 2, "waited": 0.9}
    on_a_cpu = {"status": "noisy", "instrument": "wall", "gpu_uuid": None}
    busy = ({**on_a_cpu, "contention": {**seen, "load": load}} for load in (2.0, 7.0))
    assert shown(*busy)[-2:] == [
        "2 noisy: others used this machine: load 2 to 7 on 2 cores; measure when nothing",
        "  else runs",
    ]


def test_a_routines_table_is_shown_when_its_last_case_is_done_and_once(session):
    """The last one's ends the run; with -q, where pytest's dots are the only lines of a run, all do."""
    for quiet in (False, True):
        done = session(*["-q"] * quiet, "--perf-backends=torch", test_two=TWO_ROUTINES)
        tables = [done.out.index(f"{routine} on cpu") for routine in ("mm_bf16", "bmm_bf16")]
        assert done.out.count(" on cpu ") == 2
        ends = done.out.index("= flashinfer-perf =") if not quiet else done.out.index("torch 2")
        assert [at > ends for at in tables] == [quiet, True]


TWO_ROUTINES = """
import pytest

@pytest.mark.perf_cases("mm_bf16", "--m 1 --n 16 --k 16", "--m 2 --n 16 --k 16")
def test_first(perf, case): perf(case)

@pytest.mark.perf_cases("bmm_bf16", "--batch_size 1 --m 1 --n 16 --k 16")
def test_second(perf, case): perf(case)
"""


@pytest.mark.parametrize(
    ("tier", "gpu", "said"),
    [
        ("default", False, "300 cases to measure, about 50 min; shorter by -k NAME, --perf-suite=smoke,"),
        ("smoke", False, "300 cases to measure, about 2 min; shorter by -k NAME, --perf-iters=10"),
        ("full", True, "300 cases to measure, about 2 min; shorter by -k NAME, --perf-suite=smoke,"),
    ],
)
def test_a_run_of_more_than_two_minutes_says_so_before_it_begins(cpu, hopper, tier, gpu, said):
    settings = Settings(suite=tier, named_backends="torch")
    [case, *_] = cases.cases_of(decode, settings)
    cannot = Case(decode, case.shape, "trtllm-gen", tier=tier)
    told = functools.partial(live_output.announcement, device=hopper if gpu else cpu, how=settings.measuring)
    assert " ".join(told([case] * 300 + [cannot] * 100)).startswith(said)
    assert not list(told([case] * 10 + [cannot] * 1000))


def test_it_is_said_before_the_first_test(session, monkeypatch):
    monkeypatch.setattr(live_output, "LONG_S", 0.0)
    done = session(test_own="def test_own(perf): perf.time(int)")
    done.says("1 case to measure, about 0 min; shorter by*", "*test_own.py .*")
