"""Lines of flags: of a routine, and of what an extension knows beside; and how else a case is repeated."""

import pytest
from decode_cases import DECODE, TEST

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import MissingCaseError

SHAPE = "--batch_size 1 --m 4 --n 16 --k 16"


class Beside:
    """Knows a routine by a name of its own, and one that has no case here."""

    @staticmethod
    def pytest_perf_line(words, routines):
        if "elsewhere" in words:
            raise MissingCaseError("elsewhere is not measured here")
        return cases.parse(["--routine", "bmm_fp8", *words[2:]], routines) if "theirs" in words else None


@pytest.fixture
def beside():
    loading.manager().register(Beside, "beside")
    yield
    loading.manager().unregister(Beside)


@pytest.mark.usefixtures("beside")
def test_a_line_is_that_of_a_routine_or_what_an_extension_makes_of_it():
    [ours], [theirs] = (lines.read(f"--routine {name} {SHAPE} --backends torch", "") for name in ("bmm_fp8", "theirs"))
    assert ours.case == theirs.case
    [missing], [unknown] = (lines.read(f"--routine {name} {SHAPE}", "there") for name in ("elsewhere", "nobodys"))
    assert (missing.case, missing.missing, missing.where) == (None, "elsewhere is not measured here", "there")
    assert unknown.problem.startswith("routine: unknown name 'nobodys'")


@pytest.mark.usefixtures("beside")
def test_a_backend_that_others_have_is_missing_and_one_that_nobody_has_is_a_mistake():
    fa2, typed = lines.read(f"--routine theirs {SHAPE} --backends fa2 cudn", "")
    assert (fa2.name, fa2.missing) == ("bmm_fp8[m4-n16-k16-fa2]", "bmm_fp8 has no backend fa2 in this project")
    assert typed.problem.startswith("backends: unknown name 'cudn'")
    *usual, last = lines.read(f"--routine theirs {SHAPE}", "")
    assert not any(entry.case.stands_in or entry.case.backend_name == "torch" for entry in usual)
    assert (last.case.backend_name, last.case.stands_in) == ("torch", True)


OTHER = "def pytest_perf_repeat(case): return f'theirs {case.routine.name}'"


def test_the_command_of_another_program_stands_in_the_row(session):
    rows = session("--perf-backends=torch", conftest=OTHER, test_decode=TEST).rows.values()
    assert {row["extra_info"]["repro_upstream"] for row in rows} == {f"theirs {DECODE}"}
