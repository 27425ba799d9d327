"""A test for each GEMM routine, under the routine's name."""

from pytest_flashinfer_perf.plugin.cases import family_tests

globals().update(family_tests("gemm"))
