import statistics
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

from pytest_flashinfer_perf.engine import describe as row
from pytest_flashinfer_perf.engine import peaks
from pytest_flashinfer_perf.engine.cupti import Activity, summarise
from pytest_flashinfer_perf.engine.measure import Measurement
from pytest_flashinfer_perf.engine.placements import PlacedSamples
from pytest_flashinfer_perf.engine.timing import Observations, Timing
from pytest_flashinfer_perf.plugin import terminal
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


def test_a_row_above_the_larger_roof_is_invalid(h200):
    device, _ = h200
    above_measured = of(device, 1.0, moved=4.4e12)
    assert (above_measured.status, above_measured.throughput.sol_pct) == ("ok", pytest.approx(110))
    assert of(device, 1.0, moved=4.9e12).status == "invalid", "above the datasheet's 4.8 TB/s too"


def test_what_a_hot_cache_may_hold_is_no_matter_of_the_memorys_roof(h200):
    device, _ = h200
    fits = device.cache_bytes / 2
    hot = of(device, fits / 6e12, moved=fits, cold_l2="none")
    assert (hot.status, hot.throughput.bound) == ("ok", "memory")
    assert hot.throughput.sol_pct == pytest.approx(150), "its share is still of the memory's roof"
    assert of(device, fits / 6e12, moved=fits, cold_l2="flush").status == "invalid"
    assert of(device, fits / 6e12, moved=fits, flops=fits * 200, cold_l2="none").status == "invalid", "products are not"
    assert of(device, 1.0, moved=5e12 + device.cache_bytes, cold_l2="none").status == "invalid", "the rest is not"


INPUTS = {"dtype": "float32", "inferred": True}


@pytest.mark.parametrize(
    ("work", "expected", "share"),
    [
        # The roof is the one asked for, and the other one where that does not know the type.
        ({"moved": 2.4e12, "choice": "datasheet"}, (None, "memory", "ok", "datasheet"), 50),
        ({"moved": 1e12, "flops": 1e15, "dtype": "fp8_e5m2"}, ("fp8_e5m2", "compute", "ok", "datasheet"), None),
        # A product of fp32 inputs is compared with TF32 where FP32 is not as fast, unless its type was stated.
        ({"flops": 60e12, **INPUTS}, ("float32", "compute", "ok", "measured"), None),
        ({"flops": 300e12, **INPUTS}, ("tf32", "compute", "ok", "measured"), 75),
        ({"flops": 500e12, **INPUTS}, ("tf32", "compute", "invalid", "measured"), None),
        ({"flops": 300e12, "dtype": "float32"}, ("float32", "compute", "invalid", "measured"), None),
        ({"flops": 60e12, "dtype": "tf32"}, ("tf32", "compute", "ok", "measured"), 15),
        ({"moved": 3e12, "flops": 3e12, **INPUTS}, ("float32", "memory", "ok", "measured"), 75),
        # A type without a known peak is a share of the memory's roof, which it has nonetheless.
        ({"moved": 3e12, "flops": 1e15, "dtype": "int8"}, ("int8", "memory?", "ok", "measured"), 75),
        ({"moved": 5e12, "flops": 1e15, "dtype": "int8"}, ("int8", "memory?", "invalid", "measured"), None),
    ],
)
def test_work_is_a_share_of_the_roof_that_binds_it(h200, work, expected, share):
    found = of(h200[0], 1.0, **work)
    throughput = found.throughput
    assert (throughput.flops_dtype, throughput.bound, found.status, throughput.peaks) == expected
    assert share is None or throughput.sol_pct == pytest.approx(share)


def test_a_gpu_without_a_datasheet_has_the_measured_roof(h200):
    nameless = replace(h200[0], name="NVIDIA of next year")
    assert of(nameless, 1.0, moved=1e12, choice="datasheet").throughput.peaks == "measured"


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
        made = of_samples(cpu, samples, "cupti", cuda_graph=cuda_graph, placements=placed)
        assert [one.busy for one in made.provenance.placements] == [statistics.median(busy) if busy else None] * 2
        return made.timed.busy, made.timed.busy_per_call, made.timed.gap, made.timed.gap_of

    assert found((17e-6, 19e-6), cuda_graph=False) == (18e-6, (17e-6, 19e-6) * 2, 3e-6, "host")
    assert found((17e-6, 19e-6), cuda_graph=True)[3] == "graph"
    assert found((20e-6, 22e-6), cuda_graph=True)[2:] == (0.0, None)
    assert found((), cuda_graph=True) == (None, None, None, None)


def of_samples(device, samples, instrument="wall", **how):
    timing = Timing(samples, instrument, "rotate", 6, **{"cuda_graph": False, **how})
    return row.of_measurement(CASE, Measurement(timing, device), None, "measured")


def test_a_row_without_work_and_reference_says_so(cpu):
    found = of_samples(cpu, (1.0,) * 3)
    assert found.throughput == Throughput()
    assert found.check.refcheck == "not checked"


@pytest.mark.parametrize(
    ("launches", "pause", "how", "is_bound"),
    [
        (100, 7, {}, True),
        (100, 0, {"samples": (1.0, 2.0)}, True),  # many launches that spread are the host's too
        (2, 0, {"samples": (1.0, 2.0)}, False),
        (1, 20, {"samples": (1.0, 2.0)}, False),
        (100, 0, {}, False),
        (100, 20, {"cuda_graph": True}, False),
    ],
)
def test_where_kernels_wait_for_their_launches_it_is_the_host_that_is_seen(cpu, launches, pause, how, is_bound):
    """Kernels of 3 ns, with pauses of 1 ns and more."""
    trace = summarise([Activity("a", at, at + 3) for at in range(0, launches * (4 + pause), 4 + pause)])
    found = of_samples(
        cpu, **{"samples": (1.0, 1.0), "instrument": "cupti", "observations": Observations(trace), **how}
    )
    shown = " ".join(" ".join(terminal.lines([found], ())).split())
    assert (found.provenance.host_bound, " host " in shown) == (is_bound, is_bound)
    notes = [note for note in found.execution.notes if note.startswith("limited by the host: the GPU works in ")]
    assert all(f" % of a call, which has {launches} launches: --perf-cuda-graph=on" in note for note in notes)
    assert len(notes) == ("--perf-cuda-graph=on replays them without " in shown) == is_bound


OFTEN_LATE = (1.0, 1.01) * 12 + (3.0,) * 6
FEW_AND_FAR = (1.0, 1.3, 1.6, 1.9)


@pytest.mark.parametrize(
    ("samples", "of_cupti", "of_wall"),
    [
        (OFTEN_LATE, "noisy", "ok"),
        (FEW_AND_FAR, "noisy", "noisy"),
        ((1.0, 1.04) * 15, "ok", "ok"),
        ((1.0,), "ok", "ok"),
    ],
)
def test_noise_is_spread_on_a_devices_clock_and_an_unknown_median_on_the_hosts(cpu, samples, of_cupti, of_wall):
    instruments = {"cupti": of_cupti, "events": of_cupti, "wall": of_wall}
    assert {name: of_samples(cpu, samples, name).status for name in instruments} == instruments


@pytest.mark.parametrize("count", [10, 30, 100])
def test_the_error_of_a_median_is_what_medians_scatter_by(count):
    drawn = torch.randn(2000, count, dtype=torch.float64, generator=torch.Generator().manual_seed(count))
    scatter_of_medians = drawn.quantile(0.5, dim=1).std().item()
    middle = (drawn.quantile(0.75, dim=1) - drawn.quantile(0.25, dim=1)).mean().item()
    assert scatter.median_error(middle, count) == pytest.approx(scatter_of_medians, rel=0.1)
    normal = [NormalDist().inv_cdf((nth + 0.5) / count) * 0.01 + 1 for nth in range(count)]
    by_spread = scatter.relative_error((), scatter.spread(normal), count)
    assert scatter.relative_error(normal) == pytest.approx(by_spread, rel=0.1)
