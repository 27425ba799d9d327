"""A test for each routine between GPUs, under the routine's name."""

from pytest_flashinfer_perf.plugin.cases import family_tests

globals().update(family_tests("comm"))
