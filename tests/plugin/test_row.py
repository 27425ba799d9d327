import pytest

from pytest_flashinfer_perf import peaks, row
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


def test_a_spread_above_five_percent_is_noisy(cpu):
    timing = Timing((1.0, 1.0, 1.3), "wall", "rotate", 6, cuda_graph=False)
    found = row.of_measurement(Measurement(timing, cpu), None, "measured")
    assert (found["status"], found["sol_pct"], found["tflops"], found["refcheck"]) == (
        "noisy",
        None,
        None,
        "not checked",
    )
