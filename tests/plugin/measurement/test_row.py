import statistics
from dataclasses import replace

import pytest
import torch

from pytest_flashinfer_perf.kernel_timing.placements import PlacedSamples
from pytest_flashinfer_perf.kernel_timing.run import Timing
from pytest_flashinfer_perf.measurement import peaks, row
from pytest_flashinfer_perf.measurement.measure import Measurement
from pytest_flashinfer_perf.rows import scatter
from pytest_flashinfer_perf.rows.row import Identity, Throughput
from pytest_flashinfer_perf.spec.routine import Cost, Peaks

CASE = Identity(case="mine")
ROOF = Peaks(4e12, {"bfloat16": 800e12, "float32": 50e12, "tf32": 400e12}, "measured")


@pytest.fixture
def h200(hopper, monkeypatch, tmp_path):
    """An H200 whose roof is measured by ROOF, once."""
    measured = []
    monkeypatch.setattr(peaks, "_measure", lambda device: measured.append(device) or ROOF)
    monkeypatch.setattr(peaks.platformdirs, "user_cache_path", lambda _: tmp_path)
    peaks.measured.cache_clear()
    yield hopper, measured
    peaks.measured.cache_clear()


def of(device, seconds, *, moved=0.0, flops=0.0, dtype="bfloat16", inferred=False, choice="measured", cold_l2="rotate"):
    timing = Timing((seconds,) * 3, "cupti", cold_l2, 6, cuda_graph=True)
    cost = Cost(flops, moved, dtype, inferred)
    return row.of_measurement(CASE, Measurement(timing, device, flops, moved), cost, choice)


def compared(*args, **kwargs):
    found = of(*args, **kwargs)
    return found.throughput.flops_dtype, found.throughput.bound, found.status, found.throughput.peaks


def test_a_row_above_the_larger_roof_is_invalid(h200):
    device, _ = h200
    assert of(device, 1.0, moved=4.4e12).status == "ok", "above what was measured, below the datasheet's 4.8 TB/s"
    assert of(device, 1.0, moved=4.4e12).throughput.sol_pct == pytest.approx(110)
    assert of(device, 1.0, moved=4.9e12).status == "invalid"


def test_what_a_hot_cache_may_hold_is_no_matter_of_the_memorys_roof(h200):
    device, _ = h200
    fits = device.cache_bytes / 2
    hot = of(device, fits / 6e12, moved=fits, cold_l2="none")
    assert (hot.status, hot.throughput.bound) == ("ok", "memory")
    assert hot.throughput.sol_pct == pytest.approx(150), "its share is still of the memory's roof"
    assert of(device, fits / 6e12, moved=fits, cold_l2="flush").status == "invalid"
    assert of(device, fits / 6e12, moved=fits, flops=fits * 200, cold_l2="none").status == "invalid", "products are not"
    assert of(device, 1.0, moved=5e12 + device.cache_bytes, cold_l2="none").status == "invalid", "the rest is not"


def test_the_roof_is_the_one_asked_for(h200):
    device, _ = h200
    found = of(device, 1.0, moved=2.4e12, choice="datasheet")
    assert found.throughput.sol_pct == pytest.approx(50)
    assert (found.throughput.bound, found.throughput.peaks) == ("memory", "datasheet")


def test_a_product_of_fp32_inputs_is_compared_with_tf32_where_fp32_is_not_as_fast(h200):
    device, _ = h200
    as_inputs = {"dtype": "float32", "inferred": True}
    assert compared(device, 1.0, flops=60e12, **as_inputs) == ("float32", "compute", "ok", "measured")
    assert compared(device, 1.0, flops=300e12, **as_inputs) == ("tf32", "compute", "ok", "measured")
    assert of(device, 1.0, flops=300e12, **as_inputs).throughput.sol_pct == pytest.approx(75)
    assert compared(device, 1.0, flops=500e12, **as_inputs) == ("tf32", "compute", "invalid", "measured")


def test_what_the_flops_are_stated_to_be_in_is_what_they_are_compared_with(h200):
    device, _ = h200
    assert compared(device, 1.0, flops=300e12, dtype="float32") == ("float32", "compute", "invalid", "measured")
    assert compared(device, 1.0, flops=60e12, dtype="tf32") == ("tf32", "compute", "ok", "measured")
    assert of(device, 1.0, flops=60e12, dtype="tf32").throughput.sol_pct == pytest.approx(15)


def test_elementwise_work_in_fp32_is_a_share_of_the_memory_roof(h200):
    device, _ = h200
    found = of(device, 1.0, moved=3e12, flops=3e12, dtype="float32", inferred=True)
    assert (found.throughput.sol_pct, found.throughput.bound) == (pytest.approx(75), "memory")


def test_a_type_without_a_known_peak_is_a_share_of_the_memory_roof_and_said_so(h200):
    device, _ = h200
    assert compared(device, 1.0, moved=3e12, flops=1e15, dtype="int8") == ("int8", "memory?", "ok", "measured")
    assert of(device, 1.0, moved=3e12, flops=1e15, dtype="int8").throughput.sol_pct == pytest.approx(75)
    assert of(device, 1.0, moved=5e12, flops=1e15, dtype="int8").status == "invalid", "memory has a roof nonetheless"


def test_the_other_roof_is_taken_where_the_one_asked_for_does_not_know_the_type(h200):
    device, _ = h200
    assert compared(device, 1.0, moved=1e12, flops=1e15, dtype="fp8_e5m2")[1:] == ("compute", "ok", "datasheet")
    nameless = replace(device, name="NVIDIA of next year")
    assert compared(nameless, 1.0, moved=1e12, choice="datasheet") == (None, "memory", "ok", "measured")


def test_a_roof_is_measured_once_and_kept(h200, tmp_path):
    device, measured = h200
    assert peaks.measured(device) == ROOF
    peaks.measured.cache_clear()
    assert peaks.measured(device) == ROOF, "read back from the file"
    assert measured == [device]
    assert len(list(tmp_path.rglob("*.json"))) == len(list(tmp_path.rglob("*.*"))) == 1, "and nothing half-written"


def test_a_row_says_what_of_its_calls_are_kernels_and_whose_the_gaps_are(cpu):
    def found(busy, *, cuda_graph):
        placed = PlacedSamples((20e-6, 22e-6), busy), PlacedSamples((20e-6, 30e-6), busy)
        samples = tuple(sample for one in placed for sample in one.samples)
        timing = Timing(samples, "cupti", "rotate", 6, cuda_graph=cuda_graph, placements=placed)
        made = row.of_measurement(CASE, Measurement(timing, cpu), None, "measured")
        assert [one.busy for one in made.provenance.placements] == [statistics.median(busy) if busy else None] * 2
        return made.timed.busy, made.timed.busy_per_call, made.timed.gap, made.timed.gap_of

    assert found((17e-6, 19e-6), cuda_graph=False) == (18e-6, (17e-6, 19e-6) * 2, 3e-6, "host")
    assert found((17e-6, 19e-6), cuda_graph=True)[3] == "graph"
    assert found((20e-6, 22e-6), cuda_graph=True)[2:] == (0.0, None)
    assert found((), cuda_graph=True) == (None, None, None, None)


def test_a_row_without_work_and_reference_says_so(cpu):
    timing = Timing((1.0,) * 3, "wall", "rotate", 6, cuda_graph=False)
    found = row.of_measurement(CASE, Measurement(timing, cpu), None, "measured")
    assert found.throughput == Throughput()
    assert found.check.refcheck == "not checked"


OFTEN_LATE = (1.0, 1.01) * 12 + (3.0,) * 6
FEW_AND_FAR = (1.0, 1.3, 1.6, 1.9)


@pytest.mark.parametrize(
    ("samples", "instrument", "status"),
    [
        (OFTEN_LATE, "cupti", "noisy"),
        (OFTEN_LATE, "events", "noisy"),
        (OFTEN_LATE, "wall", "ok"),
        (FEW_AND_FAR, "cupti", "noisy"),
        (FEW_AND_FAR, "wall", "noisy"),
        ((1.0, 1.04) * 15, "cupti", "ok"),
        ((1.0,), "cupti", "ok"),
        ((1.0,), "wall", "ok"),
    ],
)
def test_noise_is_spread_on_a_devices_clock_and_an_unknown_median_on_the_hosts(cpu, samples, instrument, status):
    timing = Timing(samples, instrument, "rotate", 6, cuda_graph=False)
    assert row.of_measurement(CASE, Measurement(timing, cpu), None, "measured").status == status


@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_error_of_a_median_is_what_medians_scatter_by(count):
    drawn = torch.randn(2000, count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    scatter_of_medians = drawn.quantile(0.5, dim=1).std().item()
    middle = (drawn.quantile(0.75, dim=1) - drawn.quantile(0.25, dim=1)).mean().item()
    assert scatter.median_error(middle, count) == pytest.approx(scatter_of_medians, rel=0.1)
