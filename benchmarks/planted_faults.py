"""Wrong answers, planted to see that the check of a case finds them: by tests, and by `api_evidence.py faults`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.engine import cold
from pytest_flashinfer_perf.engine.verification import Expected, compared
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.routine import LaunchOptions


def _scaled(right: Tensor) -> Tensor:
    return (right.double() * 1.02).to(right.dtype)


def _row_wrong(right: Tensor) -> Tensor:
    """A row of it, of one dimension an element, is another one's; of a single row, the reverse of it."""
    spoiled = right.clone()
    rows = spoiled.reshape(-1, right.shape[-1]) if right.dim() > 1 else spoiled.reshape(-1, 1)
    at = len(rows) // 2
    rows[at] = rows[at - 1] if len(rows) > 1 else _wide(rows[at]).flip(-1).to(right.dtype)
    return rows.reshape(right.shape)


def _wide(values: Tensor) -> Tensor:
    """Torch has no arithmetic of narrow types."""
    return values.float() if values.is_floating_point() and values.itemsize == 1 else values


def _unwritten(right: Tensor) -> Tensor:
    spoiled = right.clone()
    check.poison((spoiled,))
    return spoiled


FAULTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "scaled by 2 %": _scaled,
    "one row wrong": _row_wrong,
    "zeros": torch.zeros_like,
    "unwritten": _unwritten,
}


def missed(case: Case, device: Device) -> list[str]:
    """The faults, in all outputs of a right call at once, that the check of this case takes for its answer."""
    routine, p = case.routine, case.params
    x = routine.inputs(p, torch.Generator(device.torch).manual_seed(case.seed), device.torch)
    built = case.backend.build(p, x, LaunchOptions(case.backend_name, cuda_graph=False))
    routine.cost(p, x)
    answer = routine.reference(p, x)
    expected = Expected(answer, routine.allowed(p, x, case.backend_name), partial(routine.read, p, x))
    if not answer:
        return list(FAULTS)
    right = tuple(tensors(built.launch(cold.clone(x if built.takes is None else built.takes, set()))))
    compared(right, expected, poisoned=False).raise_if_wrong()
    return [
        name
        for name, spoil in FAULTS.items()
        if not compared(tuple(map(spoil, right)), expected, poisoned=False).faults
    ]
