"""The problem that a recorded call poses: a routine with its parameters, its sizes, and an estimate of its time."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines._offsets import listed
from pytest_flashinfer_perf.routines.derived import all_apis, special_cases
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape
from pytest_flashinfer_perf.traffic.given import GivenCall, NoCaseError

# What an estimate takes a GPU to do: bytes and operations a second of an H200, and the seconds of the smallest kernel.
# It orders cases and weighs what is not measured; no time that is reported comes from it.
BYTES_PER_S, FLOPS_PER_S, SMALLEST_S = 4.8e12, 8e14, 2e-6
COUNTS = frozenset({"s_qo", "s_kv", "kv_len", "qo_len", "nnz_kv", "num_pages", *special_cases.ROWS})
LISTS = {"actual_seq_lens_kv": "kv", "actual_seq_lens_q": "q"}


class Effort(NamedTuple):
    """What a call has to do, for an estimate of its time."""

    nbytes: float
    flops: float = 0.0

    @property
    def seconds(self) -> float:
        return SMALLEST_S + max(self.nbytes / BYTES_PER_S, self.flops / FLOPS_PER_S)


@dataclass(frozen=True)
class PosedProblem:
    """What a case measures of a call; `params` are those of the routine, in a form that can be stored."""

    routine: str
    backend: str
    params: Mapping[str, Any]
    seconds: float  # an estimate
    made: Any = field(default=None, repr=False)

    @functools.cached_property
    def fixed(self) -> tuple[Any, ...]:
        """What calls that are measured together have in common."""
        free = COUNTS | LISTS.keys() | {"expert_counts"}
        known = sorted((name, value) for name, value in self.params.items() if name not in free)
        return (self.routine, self.backend, *known)

    @functools.cached_property
    def sizes(self) -> dict[str, float]:
        """Of what a call can have more or less: rows and requests, and the tokens of the latter."""
        found = {name: float(value) for name, value in self.params.items() if name in COUNTS}
        lengths = {short: listed(text) for name, short in LISTS.items() if (text := self.params.get(name))}
        found |= {f"all {short}": float(sum(numbers)) for short, numbers in lengths.items()}
        if len(lengths) == 2:
            found["pairs"] = float(sum(q * kv for q, kv in zip(lengths["q"], lengths["kv"], strict=True)))
        if counts := self.params.get("expert_counts"):
            found["experts"] = float(sum(count > 0 for count in listed(counts)))
            found["fullest"] = float(max(listed(counts)))
        return found

    def case(self, backend: str) -> Case:
        return Case(routine_of(self.routine), Shape(self.made), backend)


def routine_of(name: str) -> AnyRoutine:
    return all_routines()[name] if name in all_routines() else all_apis()[name]


def posed(x: GivenCall, routine: str, params: Mapping[str, Any], effort: Effort, backend: str = "") -> PosedProblem:
    """The problem, by the backend that the program asked for or got; raises NoCaseError."""
    kind = routine_of(routine)
    try:
        made = kind.params(**params)
    except ParamError as error:
        raise NoCaseError(f"{routine}: {error}") from error
    return PosedProblem(routine, _backend(x, kind, backend), made.as_json(), effort.seconds, made=made)


def _backend(x: GivenCall, routine: AnyRoutine, usual: str) -> str:
    """The asked-for one, which may be `auto`, else the resolved one, else the `usual` one of the API."""
    stated = (usual, x.value("backend"), x.backend, "auto", *routine.backends)
    named = (routine.backend_named(one) for one in stated if isinstance(one, str) and one)
    return next(one.name for one in named if one is not None)
