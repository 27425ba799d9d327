"""What holds for every routine of one GPU, without one: torch's answer, memory, the same case again, distinct tiers."""

import pytest
import torch
from drawing import few
from hypothesis import given
from hypothesis import strategies as st
from on_cpu import OnCpu

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.engine import cold
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.strategies import params_of

ROUTINES = [OnCpu(routine) for routine in all_routines().values() if routine.family in ("attention", "gemm", "moe")]
each = pytest.mark.parametrize("run", ROUTINES, ids=lambda run: run.routine.name)


@each
@few(12)
@given(data=st.data())
def test_the_torch_backend_agrees_with_the_reference(run, data):
    p = data.draw(params_of(run.routine.params))
    x = run.inputs(p)
    run.launched(p, x)
    expected, bounds = run.routine.reference(p, x), run.routine.tolerances(p, "torch")
    answers = run.routine.read(p, x, run.routine.outputs(x))
    # An LSE is asked of kernels alone.
    assert [check.compare(*one).rule for one in list(zip(answers, expected, bounds, strict=True))[:1]] == [""]


@each
@few(12)
@given(data=st.data())
def test_a_case_is_the_same_bytes_every_time_and_fits_in_its_footprint(run, data):
    p = data.draw(params_of(run.routine.params))
    x, again, other = (run.inputs(p, seed) for seed in (42, 42, 43))
    stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in cold.tensors(x)}
    assert sum(stored.values()) <= run.routine.footprint(p) + 4096
    assert drawn(run.routine, x) == drawn(run.routine, again) != drawn(run.routine, other)


def drawn(routine, x):
    """The bytes of inputs; those of outputs are whatever was there."""
    written = {t.data_ptr() for t in routine.outputs(x)}
    drawn = [t for t in cold.tensors(x) if t.data_ptr() not in written]
    return [t.contiguous().flatten().view(torch.uint8).numpy().tobytes() for t in drawn]


@each
def test_every_tier_is_of_distinct_valid_cases(run):
    for tier in ("smoke", "default", "full"):
        ids = [shape.id for shape in run.routine.tiers[tier]()]
        assert len(set(ids)) == len(ids) >= 5


@each
def test_default_shapes_fit_on_one_hopper(run):
    assert max(run.routine.footprint(shape.params) for shape in run.routine.tiers["default"]()) < 130 << 30
