"""A routine on the CPU, without a session."""

import inspect
from unittest.mock import create_autospec

import pytest
import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.spec.routine import LaunchOptions


class OnCpu:
    """A routine with one output: its inputs, what a backend makes of them, and what the check says of that."""

    def __init__(self, routine):
        self.routine = routine

    def inputs(self, p, seed=42):
        return self.routine.inputs(p, torch.Generator().manual_seed(seed), torch.device("cpu"))

    def launched(self, p, x, backend="torch"):
        """The output, or nothing where the backend is a stand-in of the library's function."""
        check.poison(self.routine.outputs(x))
        built = self.routine.backends[backend].build(p, x, LaunchOptions(backend, cuda_graph=False))
        built.launch(x if built.takes is None else built.takes)
        return self.routine.outputs(x)[0]

    def passed(self, p, x, backend):
        """What a backend passes to the library's function, which is not called, by the names of its parameters."""
        path = f"flashinfer.{self.routine.backends[backend].api}"
        module, _, name = path.rpartition(".")
        api = create_autospec(getattr(pytest.importorskip(module, exc_type=ImportError), name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(path, api)
            self.launched(p, x, backend)
        return inspect.signature(api).bind(*api.call_args.args, **api.call_args.kwargs)

    def rule(self, p, out, x, backend="torch"):
        """The rule that is broken; none where the answer is right."""
        return check.compare(out, self.routine.reference(p, x)[0], *self.routine.tolerances(p, backend)).rule
