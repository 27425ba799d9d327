"""Restore the order in which a GPU assigns the blocks of a launch to its SMs.

The order is left over from earlier launches, kernels that fill the GPU exactly preserve it, and some of them
(multi-head latent attention on an H200, by 5 %) are faster in one order than in another. A launch of a few blocks on an
idle GPU always leads to the same order; one that fills the GPU does not (docs/measurement.md).
"""

from __future__ import annotations

from pytest_flashinfer_perf.machine import nvrtc
from pytest_flashinfer_perf.machine.devices import Device

BLOCKS, THREADS = 9, 32  # found by experiment: 8 blocks change nothing, 66 leave it as it was
SOURCE = 'extern "C" __global__ void nothing(unsigned long long) {}'


def restore(device: Device) -> None:
    """Restore the order; does nothing on a CPU, or if small kernels cannot be compiled."""
    if not device.is_gpu or nvrtc.missing(device):
        return
    device.synchronize()
    nvrtc.kernel(SOURCE, "nothing", device)(BLOCKS, THREADS, 0)
    device.synchronize()
