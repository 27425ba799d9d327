"""Lines for upstream's script: its parsers take each of them with the same values, and where there is none, why."""

import shlex

import pytest
import upstream_parsers

from pytest_flashinfer_perf.extensions.testlists import upstream, upstream_command
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import fields_of

NAMES = sorted(upstream.RUNS)


def _cases(routine):
    shapes = [shape for tier in ("smoke", "default") for shape in routine.tiers[tier]()]
    made = (Case(routine, s, b) for s in shapes for b in s.backends or routine.backends)
    return list({case.id: case for case in made}.values())


EVERY = {name: _cases(routine) for name, routine in all_routines().items()}
LINES = {name: [(case, upstream_command.command(case)) for case in every] for name, every in EVERY.items()}


@pytest.mark.parametrize("name", NAMES)
def test_each_line_is_parsed_upstream_with_the_values_of_its_case(name):
    parser = upstream_parsers.parser(all_routines()[name].family)
    for case, line in LINES[name]:
        if line is not None:
            program, script, *words = shlex.split(line)
            assert (program, script) == ("python3", "flashinfer_benchmark.py")
            said = parser.parse_args(words)
            assert said.routine == name
            assert getattr(said, "backends", [case.backend_name]) == [case.backend_name]
            for field in fields_of(type(case.params)):
                value = getattr(case.params, field.name)
                assert getattr(said, field.name, field.default) == value, (line, field.name)


def test_what_upstream_has_not_got_is_null():
    without = [case for lines in LINES.values() for case, line in lines if line is None]
    unknown_there = {case.routine.name for case in without if case.routine.name not in upstream.RUNS}
    assert unknown_there == set(EVERY) - set(upstream.RUNS) >= {"vllm_decode", "grouped_mm_bf16", "grouped_mm_fp8"}
    alone = [case for every in EVERY.values() for case in every if case.backend_name == "torch"]
    assert {case.id for case in alone} <= {case.id for case in without}
    assert sum(line is not None for lines in LINES.values() for _, line in lines) > 1500


def test_each_parameter_is_upstreams_or_declared_to_be_ours():
    for name in NAMES:
        routine = all_routines()[name]
        known = {action.dest for action in upstream_parsers.parser(routine.family)._actions}
        ours = {field.name for field in fields_of(routine.params)} - known
        assert ours <= upstream.FLAGS_HERE_ONLY, name


def test_backends_that_upstream_runs_are_choices_of_its_parser():
    for name in NAMES:
        family = all_routines()[name].family
        if family in upstream_parsers.BACKENDS:
            assert upstream.RUNS[name] <= set(upstream_parsers.BACKENDS[family].split())


def test_each_routine_of_upstream_is_measured_here_or_known_by_name():
    listed = upstream_parsers.ROUTINES.values()
    theirs = {*(name for names in listed for name in names.split()), *upstream_parsers.ROUTINES_SINCE}
    assert theirs == upstream.ROUTINES | set(upstream.RUNS)


def test_a_line_of_upstream_gives_the_case_again_here():
    for lines in LINES.values():
        for case, line in lines[::7]:
            if line is not None:
                again = cases.parse(shlex.split(line)[2:], all_routines())
                assert (again.routine, again.shape.params) == (case.routine, case.params)
                assert again.backends in ((), (case.backend_name,))
