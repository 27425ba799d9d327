"""A device's roof: measured once per GPU and stored in the user's cache, and that of the vendor's datasheet."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs
import torch

from pytest_flashinfer_perf import files
from pytest_flashinfer_perf.engine.instruments import INSTRUMENTS, Call, Work
from pytest_flashinfer_perf.machine import nvrtc
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.provenance import driver_version
from pytest_flashinfer_perf.spec.dtypes import FP8, HALF, TORCH
from pytest_flashinfer_perf.spec.routine import Peaks

# Dense rates from the vendor's datasheets: TB/s, then TFLOP/s of fp32 by CUDA cores, tf32, bf16 and fp16, fp8, fp4.
DATASHEET = {
    "NVIDIA A100-SXM4-80GB": (2.039, 19.5, 156.0, 312.0, None, None),
    "NVIDIA L40S": (0.864, 91.6, 183.0, 362.0, 733.0, None),
    "NVIDIA H100 80GB HBM3": (3.35, 66.9, 494.7, 989.4, 1978.9, None),
    "NVIDIA H100 PCIe": (2.0, 51.2, 378.0, 756.0, 1513.0, None),
    "NVIDIA H200": (4.8, 66.9, 494.7, 989.4, 1978.9, None),
    "NVIDIA GH200 480GB": (4.0, 66.9, 494.7, 989.4, 1978.9, None),
    "NVIDIA B200": (8.0, 75.0, 1125.0, 2250.0, 4500.0, 9000.0),
    "NVIDIA GB200": (8.0, 80.0, 1250.0, 2500.0, 5000.0, 10000.0),
}

COPY_BYTES = 2 << 30
Product = tuple[int, int, int]
# m, n, k: no one product is the fastest of every type, and a large square one already meets the power cap.
PRODUCTS = ((8192, 8192, 8192), (4096, 4096, 7168), (4096, 8192, 8192), (4096, 8192, 28672))
FP32_PRODUCTS = ((4096, 4096, 4096), (4096, 8192, 4096))  # smaller, since CUDA cores take ten times as long
METHOD = 3  # version of the measurement: roofs stored by another version are not used
ROUNDS, CALLS = 10, 10  # an idle GPU's clock takes a while to rise, a busy one's falls at the power cap
FP32_ROUNDS = 3
READ_BLOCKS_PER_SM = 4

# Sums 16-byte words and writes a sum that no data has, so that the compiler keeps the reads.
READ = r"""
extern "C" __global__ void read(uint4* words, unsigned long long count) {
    unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned int sum = 0;
    for (; i + 3 * stride < count; i += 4 * stride) {
        uint4 a = words[i], b = words[i + stride], c = words[i + 2 * stride], d = words[i + 3 * stride];
        sum += a.x ^ b.y ^ c.z ^ d.w;
    }
    if (sum == 0x5EED) words[0].x = sum;
}
"""


def datasheet(device: Device) -> Peaks | None:
    if device.name not in DATASHEET:
        return None
    memory, fp32, tf32, half, fp8, fp4 = DATASHEET[device.name]
    rates = {"float32": fp32, "tf32": tf32, **dict.fromkeys(HALF, half), **dict.fromkeys(FP8, fp8), "fp4": fp4}
    return Peaks(memory * 1e12, {name: rate * 1e12 for name, rate in rates.items() if rate is not None}, "datasheet")


def roofs(device: Device) -> dict[str, Peaks]:
    """The known roofs of a device, by their source."""
    return {peaks.source: peaks for peaks in (measured(device), datasheet(device)) if peaks is not None}


@functools.cache
def measured(device: Device) -> Peaks | None:
    """The measured roof; None on a CPU, whose rates depend on what else it runs."""
    if not device.is_gpu:
        return None
    path = cache_path(device)
    if path is not None:
        return Peaks(**json.loads(path.read_text()))
    peaks = _measure(device)
    with suppress(OSError):  # without a writable cache every run measures it
        files.write_whole(_cache_file(device), json.dumps(peaks.__dict__))
    return peaks


def cache_path(device: Device) -> Path | None:
    """The file with this device's measured roof, None if there is none."""
    path = _cache_file(device)
    return path if device.is_gpu and os.access(path, os.R_OK) else None


def _cache_file(device: Device) -> Path:
    versions = f"{driver_version()}-torch{torch.__version__}"
    return platformdirs.user_cache_path("pytest-flashinfer-perf") / "peaks" / f"{device.uuid}-{versions}-{METHOD}.json"


def _measure(device: Device) -> Peaks:
    """Measure with random data: zeros draw less power and run faster than any real case."""
    half = {name: _matmul_rate(TORCH[name], device, PRODUCTS) for name in HALF}
    return Peaks(_memory_rate(device), {**half, **_fp8_rates(device), **_fp32_rates(device)}, "measured")


def _memory_rate(device: Device) -> float:
    """The faster of a copy and a read, so that a kernel that mostly reads does not exceed the roof."""
    source = torch.zeros(COPY_BYTES // 4, dtype=torch.int32, device=device.torch)
    target = torch.empty_like(source)
    copied = 2 * COPY_BYTES / _seconds(lambda: target.copy_(source), device)
    if nvrtc.missing(device):
        return copied
    read = nvrtc.kernel(READ, "read", device)
    blocks = READ_BLOCKS_PER_SM * device.processors
    return max(copied, COPY_BYTES / _seconds(lambda: read(blocks, 512, source.data_ptr(), COPY_BYTES // 16), device))


def _fp32_rates(device: Device) -> dict[str, float]:
    """The rates of CUDA cores, and of tensor cores in TF32."""
    rates = {}
    for name, precision, since in (("float32", "ieee", (0, 0)), ("tf32", "tf32", (8, 0))):
        if device.capability is not None and device.capability >= since:
            with fp32_products(precision):
                rates[name] = _matmul_rate(torch.float32, device, FP32_PRODUCTS, FP32_ROUNDS)
    return rates


@contextmanager
def fp32_products(precision: str) -> Iterator[None]:
    """Let torch multiply fp32 matrices in IEEE fp32 ("ieee") or TF32 ("tf32"), then set back the user's precision."""
    before = _set_precision(precision)
    try:
        yield
    finally:
        _set_precision(before)


def _set_precision(wanted: str) -> str:
    """Set the precision and return the previous one. From 2.9 on torch has a newer setting and refuses to mix both."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        before, matmul.fp32_precision = str(matmul.fp32_precision), wanted
    else:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision({"ieee": "highest", "tf32": "high"}.get(wanted, wanted))
    return before


def _matmul_rate(dtype: torch.dtype, device: Device, products: Sequence[Product], rounds: int = ROUNDS) -> float:
    def rate(m: int, n: int, k: int) -> float:
        a, b = (torch.randn(rows, k, dtype=dtype, device=device.torch) for rows in (m, n))
        out = torch.empty(m, n, dtype=dtype, device=device.torch)
        return float(2 * m * n * k / _seconds(lambda: torch.mm(a, b.t(), out=out), device, rounds))

    return max(rate(*product) for product in products)


def _fp8_rates(device: Device) -> dict[str, float]:
    """The rate of e4m3, used for e5m2 as well: hardware is as fast, but torch cannot multiply two e5m2 matrices."""
    if device.capability is None or device.capability < (8, 9):
        return {}
    one = torch.ones((), device=device.torch)

    def rate(m: int, n: int, k: int) -> float:
        a, b = (torch.randn(rows, k, device=device.torch).to(torch.float8_e4m3fn) for rows in (m, n))

        def multiply() -> object:
            return torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)  # noqa: SLF001 - torch has no public fp8 product

        return float(2 * m * n * k / _seconds(multiply, device))

    return dict.fromkeys(FP8, max(rate(*product) for product in PRODUCTS))


def _seconds(call: Call, device: Device, rounds: int = ROUNDS) -> float:
    """The fastest call, since it is a roof; by CUPTI if possible, as cases are, with pauses between calls."""
    cupti = INSTRUMENTS["cupti"]
    if cupti.missing(device) is None:
        work = Work((call,), flush=False, device=device)
        return min(seconds for _ in range(rounds) for seconds, _ in cupti.sample(work, CALLS, 1))
    call()
    return min(_by_events(call) for _ in range(rounds * CALLS))


def _by_events(call: Call) -> float:
    """The time by CUDA events; calls take a millisecond, so that the microseconds of a launch do not matter."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
