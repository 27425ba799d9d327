import pytest
import torch

from pytest_flashinfer_perf import peaks, row, scatter
from pytest_flashinfer_perf.cost import Cost, Peaks
from pytest_flashinfer_perf.measurement import Measurement
from pytest_flashinfer_perf.timing.run import Timing

ROOF = Peaks(4e12, {"bfloat16": 800e12}, "measured")


@pytest.fixture
def h200(hopper, monkeypatch, tmp_path):
    """An H200 whose roof is measured by ROOF, once."""
    measured = []
    monkeypatch.setattr(peaks, "_measure", lambda device: measured.append(device) or ROOF)
    monkeypatch.setattr(peaks.platformdirs, "user_cache_path", lambda _: tmp_path)
    peaks.measured.cache_clear()
    yield hopper, measured
    peaks.measured.cache_clear()


def of(device, seconds, *, moved, choice="measured"):
    timing = Timing((seconds,) * 3, "cupti", "rotate", 6, cuda_graph=True)
    return row.of_measurement(Measurement(timing, device, 0.0, moved), Cost(0.0, moved, "bfloat16"), choice)


def test_a_row_above_the_larger_roof_is_invalid(h200):
    device, _ = h200
    assert of(device, 1.0, moved=4.4e12)["status"] == "ok", "above what was measured, below the datasheet's 4.8 TB/s"
    assert of(device, 1.0, moved=4.4e12)["sol_pct"] == pytest.approx(110)
    assert of(device, 1.0, moved=4.9e12)["status"] == "invalid"


def test_the_roof_is_the_one_asked_for(h200):
    device, _ = h200
    found = of(device, 1.0, moved=2.4e12, choice="datasheet")
    assert (found["sol_pct"], found["bound"], found["peaks"]) == (pytest.approx(50), "memory", "datasheet")


def test_a_roof_is_measured_once_and_kept(h200, tmp_path):
    device, measured = h200
    assert peaks.measured(device) == ROOF
    peaks.measured.cache_clear()
    assert peaks.measured(device) == ROOF, "read back from the file"
    assert measured == [device]
    assert len(list(tmp_path.rglob("*.json"))) == len(list(tmp_path.rglob("*.*"))) == 1, "and nothing half-written"


def test_a_row_without_work_and_reference_says_so(cpu):
    found = row.of_measurement(
        Measurement(Timing((1.0,) * 3, "wall", "rotate", 6, cuda_graph=False), cpu), None, "measured"
    )
    assert [found[name] for name in ("sol_pct", "tflops", "refcheck")] == [None, None, "not checked"]


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
    assert row.of_measurement(Measurement(timing, cpu), None, "measured")["status"] == status


@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_error_of_a_median_is_what_medians_scatter_by(count):
    drawn = torch.randn(2000, count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    scatter_of_medians = drawn.quantile(0.5, dim=1).std().item()
    middle = (drawn.quantile(0.75, dim=1) - drawn.quantile(0.25, dim=1)).mean().item()
    assert scatter.median_error(middle, count) == pytest.approx(scatter_of_medians, rel=0.1)
