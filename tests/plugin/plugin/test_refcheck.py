"""What a run does with answers: compares them or not, keeps a wrong one's row or not, by whose bounds."""

import pytest

GEMM = "--routine bmm_fp8 --batch_size 1 --m 4 --n 16 --k 16"
PLANTED = """
import pytest, torch
from pytest_flashinfer_perf.spec.routine import Built
from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8

@bmm_fp8.backend("planted")
def _planted(p, x, how):
    honest = bmm_fp8.backends["torch"].build(p, x, how).launch
    return Built(lambda x: (honest(x), x.out.mul_(1.5)), "planted")

@pytest.mark.perf_cases("bmm_fp8", "--batch_size 1 --m 4 --n 16 --k 16")
def test_bmm(perf, case):
    perf(case)
"""


BACKEND, _, TEST = PLANTED.partition("@pytest")
PROJECT = "flashinfer-perf.toml"


@pytest.fixture
def run(session):
    """A session with two backends, one of which answers wrongly, and what each row adds to pytest-benchmark's."""

    def run(*options, backends=True):
        test = f"import pytest\n@pytest{TEST}"
        chosen = ("--perf-backends=torch,planted",) * backends
        done = session(*chosen, *options, conftest=BACKEND, test_bmm=test)
        return done, [row["extra_info"] for row in done.rows.values()]

    yield run
    from pytest_flashinfer_perf.routines.gemm.bmm import bmm_fp8

    bmm_fp8.backends.pop("planted", None)


def test_a_wrong_answer_fails_its_case_and_leaves_no_row(run):
    done, rows = run("-W", "error:Benchmark fixture was not used")
    assert done.outcomes == {"passed": 1, "failed": 1}
    assert [row["backend"] for row in rows] == ["torch"]
    done.says(
        "wrong answer: output 0: * elements differ by more than rtol 0.01*",
        "*errors in units of their row's rms, 50 %: *",
        "*explained by a scale: everything is multiplied by 1.[45]*",
        "*run it again*",
        "pytest '--perf-case=--routine bmm_fp8 --backends planted *",
    )


def test_a_wrong_answer_may_stay_and_is_shown_as_such(run):
    done, (honest, wrong) = run("--perf-allow-output-mismatch")
    assert done.outcomes == {"passed": 2}
    assert (honest["status"] in ("ok", "noisy"), honest["refcheck"]) == (True, "passed")
    assert (wrong["status"], wrong["refcheck"]) == ("wrong", "wrong")
    assert wrong["refcheck_worst_rel"] > 0.5
    done.result.stdout.fnmatch_lines_random(["[*] torch *", "  planted *WRONG", "1 WRONG: the answer is not the ref*"])


def test_a_cases_own_flag_means_the_same(run):
    lines = (f"{GEMM} --backends planted --allow_output_mismatch", f"{GEMM} --m 8 --backends planted")
    done, [row] = run(*(f"--perf-case={line}" for line in lines), "--import-mode=importlib", backends=False)
    assert (done.outcomes["passed"], done.outcomes["failed"]) == (1, 1)
    assert row["status"] == "wrong"
    assert "--allow_output_mismatch" in row["repro"]


def test_answers_are_not_looked_at_where_that_is_asked_for(run):
    done, rows = run("--perf-refcheck=off")
    assert done.outcomes == {"passed": 2}
    assert [(row["refcheck"], row["refcheck_worst_abs"]) for row in rows] == [("off", None)] * 2
    done.says("2 not checked: --perf-refcheck=off")


def test_answers_alone_are_looked_at_where_that_is_asked_for(run):
    done, rows = run("--perf-refcheck=only")
    assert (done.outcomes, rows) == ({"passed": 1, "failed": 1}, [])
    done.says("1 answer checked, none timed (--perf-refcheck=only): 1 passed")
    assert "OPS (" not in done.out


OWN_CALLS = """
import pytest, torch

def test_right(perf):
    seen = perf.time(torch.neg, torch.ones(8), reference=-torch.ones(8))
    with pytest.raises(RuntimeError, match="nothing was timed: --perf-refcheck=only"):
        seen.median

def test_wrong(perf): perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))
def test_in_place(perf): perf.time(torch.neg_, torch.ones(8), reference=-torch.ones(8))

def test_scratch(perf):
    def scratch(x, out): out.copy_(-x); x.zero_()
    perf.time(scratch, torch.ones(8), out=torch.empty(8), reference=-torch.ones(8))
"""


def test_own_kernels_are_looked_at_alone_too(session):
    done = session("--perf-refcheck=only", test_own=OWN_CALLS)
    assert done.outcomes == {"passed": 2, "failed": 2}
    done.says("*the call changed its input (8,) of float32*")
    assert "fixture.py" not in done.out


def test_a_project_says_how_far_an_answer_may_be_off(run, pytester):
    (pytester.path / PROJECT).write_text('[tolerances]\n"bmm_fp8/planted" = { rtol = 0.6, scale = 0.6 }\n')
    assert run()[0].outcomes == {"passed": 2}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('"bmm_fp9" = { rtol = 0.1 }', "unknown name 'bmm_fp9', did you mean bmm_fp8?"),
        ('"bmm_fp8/cublass" = { rtol = 0.1 }', "unknown name 'cublass', did you mean cublas?"),
        ('"bmm_fp8" = { rtoll = 0.1 }', "unknown name 'rtoll', did you mean rtol? known are rtol, atol"),
    ],
)
def test_a_tolerance_that_cannot_be_understood_names_file_and_line(run, pytester, line, sentence):
    (pytester.path / PROJECT).write_text(f"[tolerances]\n{line}\n")
    done, _ = run("--collect-only")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert f"{PROJECT}: [tolerances] {line.split(chr(34))[1]!r}" in done.err
    assert sentence in done.err
