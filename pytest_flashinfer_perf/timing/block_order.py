"""The order in which a GPU hands the blocks of a launch to its SMs, which stays as earlier launches left it.

Kernels that fill the GPU exactly keep that order for ever, and some of them (multi-head latent attention on an H200, by
5 %) are faster in one order than in another: which one they meet depends on what ran before them. A launch of a few
blocks on an idle GPU puts it back to one and the same order; one that fills the GPU does not (docs/measurement.md).
"""

from __future__ import annotations

from pytest_flashinfer_perf.machine import nvrtc
from pytest_flashinfer_perf.machine.devices import Device

BLOCKS, THREADS = 9, 32  # found by experiment: 8 blocks change nothing, 66 leave it as it was
SOURCE = 'extern "C" __global__ void nothing(unsigned long long) {}'


def restore(device: Device) -> None:
    """Put it back; nothing on a CPU, and where small kernels cannot be compiled."""
    if not device.is_gpu or nvrtc.missing(device):
        return
    device.synchronize()
    nvrtc.kernel(SOURCE, "nothing", device)(BLOCKS, THREADS, 0)
    device.synchronize()
