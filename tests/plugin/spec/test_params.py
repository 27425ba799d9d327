import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.attention.decode import SMOKE, BatchDecode, decode
from pytest_flashinfer_perf.routines.attention.mla import BatchMLA
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case, CaseOptions
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import Shape
from pytest_flashinfer_perf.strategies import params_of

REPEATS = loading.manager().hook.pytest_perf_repeat  # the command of another program, if an extension has one


@given(params_of(BatchDecode))
def test_flags_round_trip(params):
    assert flags.read(BatchDecode, flags.write(params)) == params


measured_as = st.builds(
    CaseOptions,
    num_iters=st.none() | st.integers(1, 99),
    dry_run_iters=st.none() | st.integers(0, 9),
    no_cuda_graph=st.booleans(),
    use_cuda_events=st.booleans(),
)
any_case = st.sampled_from(list(all_routines().values())).flatmap(
    lambda routine: st.builds(
        Case,
        st.just(routine),
        params_of(routine.params).map(Shape),
        st.sampled_from(list(routine.backends)),
        st.integers(0, 9),
        st.none() | st.just('it\'s "quoted"'),
        st.none() | st.just("a file"),
        measured_as,
    )
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(any_case)
def test_both_repro_commands_give_the_case_again(case):
    pytest_command, upstream_command = shlex.split(case.repro), REPEATS(case=case)
    assert pytest_command[0] == "pytest"
    again = shlex.split(pytest_command[1].removeprefix("--perf-case="))
    assert cases.parse(again, all_routines()).cases() == [case]
    if upstream_command is not None:
        assert case in cases.parse(shlex.split(upstream_command)[2:], all_routines()).cases()


def test_flags_of_a_neighbour_and_of_any_routine_say_nothing():
    line = "--routine bmm_fp8 --batch_size 1 --m 4 --n 16 --k 16 --backends torch"
    wider = f"{line} --mma_sm 2 --scale_major_mode K --enable_pdl --generate_repro_command --output_path out.csv"
    assert (
        cases.parse(shlex.split(wider), all_routines()).cases()
        == cases.parse(shlex.split(line), all_routines()).cases()
    )


@given(params_of(BatchDecode), params_of(BatchDecode))
def test_ids_tell_problems_apart(one, other):
    def said(params):
        """The problem with what goes without saying written out."""
        return replace(params, head_dim_vo=params.head_dim_out, out_dtype=params.out)

    assert (one.slug() == other.slug()) == (said(one) == said(other))
    assert re.fullmatch(r"[a-z0-9.-]+", one.slug())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_qo_heads": 7}, "num_qo_heads: 7 is not a multiple of num_kv_heads 2"),
        ({"page_size": 0}, "page_size: must be at least 1, got 0"),
        ({"s_qo": 300, "causal": True}, "s_qo: 300 is more than s_kv 256"),
        ({"head_dim_vo": 128}, "head_dim_vo: 128 differs from head_dim_qk 64"),
        ({"kv_dtype": "int4"}, "kv_dtype: must be one of bfloat16, float16, fp8_e4m3, fp8_e5m2, got 'int4'"),
        ({"batch_size": True}, "batch_size: must be int, got True"),
        ({"batch_size": -1, "s_kv": 0}, "batch_size: must be at least 1, got -1; s_kv: must be at least 1, got 0"),
    ],
)
def test_a_bad_value_is_an_error_that_names_it(change, sentence):
    with pytest.raises(ParamError, match=re.escape(sentence)):
        replace(SMOKE, **change)


def test_without_backends_a_line_means_all_of_them():
    made = cases.parse(["-R", decode.name, *flags.write(SMOKE)], all_routines()).cases()
    assert [case.backend_name for case in made] == list(decode.backends)


@given(params_of(BatchDecode))
def test_json_params_of_a_shape_are_the_same_however_it_was_said(params):
    said = replace(params, head_dim_vo=params.head_dim_out, out_dtype=params.out)
    unsaid = replace(params, head_dim_vo=None, out_dtype=None if params.out == params.q_dtype else params.out)
    assert said.as_json() == unsaid.as_json() == {**params.as_json(), "head_dim_vo": params.head_dim_qk}


def test_json_params_say_what_mla_writes_for_narrow_queries():
    sizes = "--batch_size 1 --s_kv 8 --num_qo_heads 2 --page_size 4 --head_dim_ckv 128 --head_dim_kpe 64"
    narrow = flags.read(BatchMLA, flags.split(f"{sizes} --q_dtype fp8_e4m3"))
    assert narrow.as_json()["out_dtype"] == narrow.out == "bfloat16"
