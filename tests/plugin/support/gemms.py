"""The GEMM routines, as their files declare them: a test of all takes them from here, and a new file is in it."""

import torch

from pytest_flashinfer_perf.routines import all_routines

GEMM = {name: routine for name, routine in all_routines().items() if routine.family == "gemm"}


def smoke(routine):
    """The shapes of the smallest tier, each for a flag that decides which kernel runs; a plain one comes first."""
    return [shape.params for shape in routine.tiers["smoke"]()]


def inputs(routine, p):
    return routine.inputs(p, torch.Generator().manual_seed(0), torch.device("cpu"))


def _is_dense(routine):
    """Whether operands are multiplied as they are stored: without scales, groups or a factor."""
    return set(inputs(routine, smoke(routine)[0])._fields) <= {"a", "b", "bias", "out"}


DENSE = [name for name, routine in GEMM.items() if _is_dense(routine)]
