"""What a machine is told it can measure, and what can be asked for by name."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from declared import OPTIONS
from distributions import DSL, OLD, sides

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.doctor import consequences, gpus
from pytest_flashinfer_perf.extensions.doctor import doctor_command as doctor
from pytest_flashinfer_perf.extensions.doctor import doctor_command as told
from pytest_flashinfer_perf.machine import capability, devices, provenance, requirements
from pytest_flashinfer_perf.routines import all_routines

# What FlashInfer's modules warn of while they are imported is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GPU = {
    "device": "cuda:0",
    "name": "NVIDIA H200",
    "uuid": "GPU-0",
    "compute_capability": "9.0",
    "processors": 132,
    "l2_bytes": 60 << 20,
    "free_bytes": 139 << 30,
}


@pytest.fixture
def nvml(monkeypatch):
    """The library as it would answer for one GPU that tells all but its persistence mode."""
    made = ModuleType("pynvml")
    made.NVMLError = type("NVMLError", (Exception,), {})
    made.NVML_CLOCK_SM, made.NVML_CLOCK_MEM = 1, 2

    def refuse(*_):
        raise made.NVMLError

    answers = {
        "Init": None,
        "SystemGetDriverVersion": "580.1",
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": "handle",
        "DeviceGetHandleByUUID": "handle",
        "DeviceGetUUID": "GPU-0",
        "DeviceGetClockInfo": 345,
        "DeviceGetMaxClockInfo": 1980,
        "DeviceGetPowerUsage": 75_100,
        "DeviceGetEnforcedPowerLimit": 650_000,
        "DeviceGetPowerManagementDefaultLimit": 700_000,
        "DeviceGetCurrentClocksEventReasons": 0x04,
        "DeviceGetComputeRunningProcesses": [SimpleNamespace(pid=7, usedGpuMemory=2 << 30)],
    }
    for name, answer in answers.items():
        setattr(made, f"nvml{name}", lambda *_, answer=answer: answer)
    made.nvmlDeviceGetPersistenceMode = made.nvmlSystemGetProcessName = refuse
    monkeypatch.setitem(sys.modules, "pynvml", made)
    provenance.nvml.cache_clear()
    provenance.handle_of.cache_clear()
    yield made
    provenance.nvml.cache_clear()
    provenance.handle_of.cache_clear()


@pytest.mark.usefixtures("nvml")
def test_nvml_tells_what_it_can_and_the_rest_is_null():
    assert gpus.uuids() == ["GPU-0"]
    assert gpus.health("GPU-0") == {
        "sm_mhz": 345,
        "sm_mhz_most": 1980,
        "memory_mhz": 345,
        "power_w": 75.1,
        "power_cap_w": 650,
        "power_cap_usual_w": 700,
        "persistence": None,
        "throttle": "power cap",
        "processes": [{"pid": 7, "name": None, "bytes": 2 << 30}],
    }


@pytest.mark.usefixtures("nvml")
def test_a_gpu_is_described_with_its_clocks_its_power_and_who_else_is_on_it(hopper):
    facts = {"no_gpu": None, **doctor.facts_about(hopper, [], {}), "gpus": [{**GPU, **gpus.health("GPU-0")}]}
    text = " ".join(" ".join(told.lines(facts)).split())
    for said in (
        "NVIDIA H200, compute capability 9.0, 132 SMs, L2 60 MiB, 139.0 GiB free",
        "SM clock 345 of 1980 MHz",
        "75 W, capped at 650 of 700 W; throttled by power cap; persistence unknown",
        "OTHER PROCESSES: a process (7, 2.0 GiB)",
    ):
        assert said in text


def test_without_nvml_it_says_what_to_install(hopper):
    facts = {"no_gpu": None, **doctor.facts_about(hopper, [], {}), "gpus": [GPU]}
    assert any("pip install nvidia-ml-py" in line for line in told.lines(facts))


def test_every_routine_and_backend_has_a_yes_or_a_reason(hopper):
    facts = doctor.facts_about(hopper, [], {})
    assert facts["measures_on_gpu"] is True
    for name, routine in all_routines().items():
        asked = {b.name: capability.missing(b.requires, hopper) for b in routine.backends.values()}
        assert facts["routines"][name] == asked
    decode = facts["routines"]["BatchDecodeWithPagedKVCacheWrapper"]
    assert decode["torch"] is None
    assert decode["trtllm-gen"] == "trtllm-gen needs compute capability 10.0 or 10.3 or 10.7, this is 9.0"


@pytest.mark.usefixtures("nvml")
def test_it_is_one_screen_of_80_columns(hopper):
    facts = {"no_gpu": None, **doctor.facts_about(hopper, [], {}), "gpus": [{**GPU, **gpus.health("GPU-0")}]}
    lines = list(told.lines(facts))
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.skipif(gpus.uuids() != [], reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_why_and_exits_with_1(capsys):
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "GPU        none: " in out
    without_api = [not backend.api for routine in all_routines().values() for backend in routine.backends.values()]
    on_cpu = f"{sum(without_api)} of {len(without_api)} routines x backends run on cpu"
    assert f"nothing can be measured on a GPU; {on_cpu}" in out


def test_a_broken_flashinfer_is_named(cpu, monkeypatch):
    monkeypatch.setattr(capability, "_is_there", lambda name: name != "flashinfer")
    capability.flashinfer_import_error.cache_clear()
    facts = {"no_gpu": "none here", **doctor.facts_about(cpu, [], {})}
    capability.flashinfer_import_error.cache_clear()
    assert any(line.strip().startswith("flashinfer is not installed") for line in told.lines(facts))


@pytest.fixture
def forgotten():
    """What was read of the packages that are installed."""
    yield lambda: [known.cache_clear() for known in (requirements.versions, requirements.unmet)]
    requirements.versions.cache_clear()
    requirements.unmet.cache_clear()


def test_it_says_what_an_incomplete_flashinfer_does_instead(hopper, tmp_path, monkeypatch, capsys, forgotten):
    monkeypatch.setattr(devices, "find", lambda _: hopper)  # a GPU on which all backends could run
    monkeypatch.setattr(gpus, "uuids", list)
    older = f"INCOMPLETE {OLD}: pip install 'nvidia-cutlass-dsl>=4.6.2a0'; then rmsnorm, layernorm"
    said = ["requires 1 packages, all installed"], [older, "silently run older CUDA kernels"]
    for folder, code, sentences in zip(sides(tmp_path), (0, 1), said, strict=True):
        monkeypatch.syspath_prepend(str(folder))
        forgotten()
        assert cli.main(["doctor"]) == code
        shown = " ".join(capsys.readouterr().out.split())
        assert [one for one in sentences if one not in shown] == []


def test_list_shows_every_routine_backend_tier_model_and_flag(capsys):
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    words = set(out.split())
    for name, routine in all_routines().items():
        models = routine.presets.layers if routine.presets and "--perf-model" in OPTIONS else ()
        assert {name, *routine.backends, *routine.tiers, *models} <= words
    assert {"--batch_size", "--page_size", "--mma_sm", "--routing_method"} <= words


def test_list_explains_one_routines_flags(capsys):
    assert cli.main(["list", "mm_fp8"]) == 0
    out = capsys.readouterr().out
    assert "bmm_fp8" not in out
    assert "--out_dtype                 type of the output: bfloat16 (bfloat16)" in out
    assert cli.main(["list", "GEMM_FP8"]) == 0
    assert "group_gemm_fp8_nt_groupwise" in capsys.readouterr().out


def test_list_knows_no_such_routine(capsys):
    assert cli.main(["list", "mm_fp9"]) == 2
    assert "unknown name 'mm_fp9', did you mean" in capsys.readouterr().err


# What FlashInfer requires.


def forget():
    requirements.versions.cache_clear()
    requirements.unmet.cache_clear()


def test_every_consequence_is_of_something_that_flashinfer_requires():
    forget()
    known = {*requirements.versions(), "cuda-bindings"}
    assert {name for name in consequences.WITHOUT if name not in known} == set()


def test_another_version_of_what_flashinfer_imports_is_not_said_to_end_its_import():
    assert consequences.without("cuda-bindings") == consequences.NO_IMPORT
    assert consequences.without("cuda-bindings", is_there=True) is None
    assert consequences.without(DSL, is_there=True) == consequences.without(DSL)
