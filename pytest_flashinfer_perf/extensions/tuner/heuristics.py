"""Choices that FlashInfer makes by a heuristic, without its tuner: what else it could have chosen.

`auto` stands for one of the backends of its routine: it is raced against each of them that can run here. An API whose
algorithm a variable of the environment sets is raced against each of its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

import pytest

from pytest_flashinfer_perf.api import Settings, errors, one_case
from pytest_flashinfer_perf.engine.repeated import RepeatedCase
from pytest_flashinfer_perf.extensions.tuner.contest import Entrant
from pytest_flashinfer_perf.extensions.tuner.race import UnfitError
from pytest_flashinfer_perf.spec.case import Case

AUTO = "auto"
# FlashInfer reads it at each call: Python takes `clusters`, on SM100 alone, and `cub`, which 0.6.18 lacks; for all else
# C++ takes `filtered` or `multi_cta`, or one of these by a heuristic of its own.
TOPK = ("FLASHINFER_TOPK_ALGO", ("default", "clusters", "cub", "filtered", "multi_cta"))
ALGORITHMS = {"top_k": TOPK, "top_k_page_table_transform": TOPK, "top_k_ragged_transform": TOPK}


def rivals(case: Case, call: RepeatedCase, settings: Settings) -> list[Entrant]:
    """What the heuristic chose first, then the others; this alone where none chooses."""
    chosen = Entrant(case.backend_name, call)
    if case.backend_name == AUTO:
        return [chosen, *_backends(case, call, settings)]
    known = ALGORITHMS if case.backend.api else {}
    variable, values = known.get(case.routine.name.rpartition(".")[2], ("", ()))
    return [chosen, *(Entrant(value, call, partial(_set, variable, value)) for value in values)]


def _backends(case: Case, call: RepeatedCase, settings: Settings) -> Iterator[Entrant]:
    """The other backends that can run here, of those that `--perf-backends` has beside `auto`, or of all.

    The one that stands in where there is no GPU is none of them there.
    """
    device, asked = call.device, set(settings.backends) - {AUTO}
    for name, backend in case.routine.backends.items():
        is_rival = name != AUTO and (not asked or name in asked) and (backend.api or not device.is_gpu)
        other = Case(case.routine, case.shape, name, case.seed)
        if is_rival and one_case.obstacle(other, device, settings.max_memory) is None:
            try:
                made = call.beside(other)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the others can be raced
                yield Entrant(name, call, partial(_fails, errors.in_one_line(error)))
            else:
                yield Entrant(name, made)


def _fails(reason: str) -> NoReturn:
    raise UnfitError("fails", reason)


@contextmanager
def _set(variable: str, value: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(variable, value)
        yield
