"""vLLM's decode, where the extension is that has its routine."""

from pytest_flashinfer_perf.plugin.cases import family_tests

globals().update({name: test for name, test in family_tests("attention").items() if name == "test_vllm_decode"})
