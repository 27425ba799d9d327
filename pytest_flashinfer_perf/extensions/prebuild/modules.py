"""Find the FlashInfer modules of cases: call each with a pretended GPU, and record the modules that it loads.

Each case is built and launched once, as its measurement would be; `patches.py` has all that is replaced meanwhile. A
call that fails is listed with its error, and the modules that it met are compiled nevertheless.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_flashinfer_perf.api import Device, Settings, capability, check, devices, errors, one_case, timing
from pytest_flashinfer_perf.extensions.prebuild import patches
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case, quarantined
from pytest_flashinfer_perf.spec.routine import CannotRunError, LaunchOptions


@dataclass
class ModuleSearch:
    """The modules of all cases by name, how many cases cannot run there, and why the calls of others failed."""

    modules: dict[str, Any] = field(default_factory=dict)
    cannot: int = 0
    lost: Counter[str] = field(default_factory=Counter)


def needed(cases: list[Case], settings: Settings) -> ModuleSearch:
    """Find the modules for all GPUs that FlashInfer compiles for."""
    broken = capability.flashinfer_import_error()
    if broken:
        raise CannotRunError(broken)
    targets: Any = importlib.import_module("flashinfer.compilation_context").CompilationContext()
    result = ModuleSearch()
    with patches.recording(result.modules):
        for major, minor in sorted(targets.TARGET_CUDA_ARCHS):
            device = _pretended(major, int(minor.rstrip("af")))
            for case in cases:
                if case.backend_name != "torch":  # it loads no module of FlashInfer's
                    _follow(case, device, settings, result)
    return result


def _pretended(major: int, minor: int) -> Device:
    patches.pretend((major, minor))
    devices._gpu.cache_clear()  # noqa: SLF001 - what is cached is of another GPU
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flashinfer":
            for value in list(vars(module).values()):
                if inspect.getattr_static(value, "cache_clear", None):  # some load a library if asked for any name
                    value.cache_clear()
    return devices.find("cuda:0")


def _follow(case: Case, device: Device, settings: Settings, result: ModuleSearch) -> None:
    quarantine = quarantined(case, settings.quarantine, all_routines())
    if quarantine or one_case.obstacle(case, device, settings.max_memory):
        result.cannot += 1
        return
    try:
        with warnings.catch_warnings(), redirect_stdout(None), patches.Pretence():
            warnings.simplefilter("ignore")
            _called(case, device, settings)
    except CannotRunError:  # which is known when the call is built
        result.cannot += 1
    except check.WrongAnswerError:  # of a call that computes nothing; its modules are known by then
        return
    except Exception as error:  # noqa: BLE001 - a pretended GPU may cause any error
        result.lost[f"{case.routine.name}, {case.backend_name}: {errors.in_one_line(error)}"] += 1


def _called(case: Case, device: Device, settings: Settings) -> None:
    routine, p = case.routine, case.params
    if case.backend.modules:
        _declared(case.backend.modules)
        return
    x = routine.inputs(p, torch.Generator().manual_seed(case.seed), patches.PRETENDED)
    built = case.backend.build(
        p, x, LaunchOptions(case.backend_name, timing.uses_graph(settings.measuring, device, routine.cuda_graph))
    )
    built.launch(x if built.takes is None else built.takes)


def _declared(functions: tuple[str, ...]) -> None:
    """Of a backend whose call cannot be made here to find them."""
    for path in functions:
        module, _, name = path.rpartition(".")
        getattr(importlib.import_module(f"flashinfer.{module}"), name)().build_and_load()
