import re

import pytest

from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device


def at(device, *cc):
    return Device(device.torch, "GPU", cc, "GPU-0", 1 << 20, 100)


@pytest.mark.parametrize(
    ("wanted", "here", "needed"),
    [
        (["9.0"], (9, 0), None),
        (["90"], (9, 0), None),
        (["90"], (8, 9), "9.0, this is 8.9"),
        (["100+"], (12, 0), None),
        (["10.0+"], (9, 0), "10.0 or later, this is 9.0"),
        (["90", "100+"], (10, 3), None),
        (["9.0", "10.0+"], (8, 0), "9.0 or 10.0 or later, this is 8.0"),
        (["8.0+"], (12, 1), None),
    ],
)
def test_what_compute_capability_is_needed_and_which_is_there_is_a_sentence(hopper, wanted, here, needed):
    reason = capability.compute_capability("fa9", *wanted)(at(hopper, *here))
    assert reason == (needed and f"fa9 needs compute capability {needed}")


def test_a_bad_capability_is_an_error():
    with pytest.raises(ValueError, match=re.escape('write "9.0" or "90"')):
        capability.compute_capability("x", "hopper")


def test_a_missing_package_names_its_install_line(hopper):
    require = capability.package("no_such_module", "no-such-dist", "cudnn")
    assert require(hopper) == "cudnn needs no-such-dist: pip install no-such-dist"
    assert capability.package("no_such.module", "d", "x")(hopper)
    assert capability.package("pytest", "pytest", "x")(hopper) is None


def test_on_a_cpu_every_backend_but_torch_says_so(cpu, routine):
    for name, backend in routine.backends.items():
        reason = capability.missing(backend.requires, cpu)
        assert reason == (None if name == "torch" else f"{name} needs an NVIDIA GPU, this run is on the CPU")


def test_names_that_this_flashinfer_has(hopper):
    pytest.importorskip("flashinfer")
    assert capability.flashinfer("trtllm_batch_decode_with_kv_cache", "decode.fast_decode_plan")(hopper) is None
    assert "has no no_such_kernel" in capability.flashinfer("no_such_kernel", "bmm_fp8")(hopper)


def test_the_librarys_own_decorators_decide(hopper):
    pytest.importorskip("flashinfer")
    assert capability.declared_by("bmm_fp8", "cublas")(hopper) is None
    reason = capability.declared_by("bmm_fp8", "cutlass")(hopper)
    assert reason == "flashinfer declares no support of bmm_fp8 with backend cutlass on compute capability 9.0"
    assert capability.declared_by("bmm_fp8", "cutlass")(at(hopper, 10, 0)) is None
    assert "gemm_fp8_nt_groupwise" in capability.declared_by("gemm_fp8_nt_groupwise", "cutlass")(hopper)


def test_a_broken_import_is_a_reason(hopper, monkeypatch):
    monkeypatch.setattr(capability, "flashinfer_import_error", lambda: "flashinfer failed to import: OSError: no")
    assert capability.flashinfer()(hopper) == "flashinfer failed to import: OSError: no"


def test_parameters_are_found_behind_the_implementation():
    flashinfer = pytest.importorskip("flashinfer")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper
    assert capability.accepts(wrapper.plan, "q_len_per_req")
    assert capability.accepts(wrapper.run, "enable_pdl")
    assert not capability.accepts(wrapper.run, "no_such_parameter")


def test_a_test_may_name_any_backend_of_the_suite():
    from pytest_flashinfer_perf.routines import all_routines

    named = {backend.runs_as for routine in all_routines().values() for backend in routine.backends.values()}
    assert named - set(capability.HARDWARE) <= {"torch"}


def test_a_cpus_cache_is_not_larger_than_its_cores_could_have(monkeypatch):
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 1)
    assert devices._last_level_cache() <= 16 << 20
