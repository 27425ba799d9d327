"""A device that is said to be a GPU."""

from pytest_flashinfer_perf.machine.devices import Device


class SaidToBeAGpu(Device):
    """The CPU's clock and memory, with a GPU's name: what is done for a GPU alone is done."""

    def synchronize(self):
        pass

    def free_bytes(self):
        return 1 << 30
