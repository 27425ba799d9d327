"""What a recorded call was given, and the problem that it poses: a routine, its parameters, an estimate of its time."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_flashinfer_perf.api import FlashinferPerfError
from pytest_flashinfer_perf.extensions.apis import special_cases
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.traffic.recording import RecordedCall, Sample
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines._offsets import listed
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.dtypes import OURS
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape

BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "uint32": 4, "bfloat16": 2, "float16": 2}
IN_PART = ("cache", "workspace", "buffer")


class NoCaseError(FlashinferPerfError):
    """A call that no case measures; the sentence says why."""


class CallArguments:
    """The arguments of a call by name, those of `plan` and of the wrapper's constructor behind them."""

    def __init__(self, call: RecordedCall, sample: Sample | None = None) -> None:
        wrapper = call.wrapper
        self.api, self.backend = call.api, call.backend
        self.call = dict(call.arguments)
        self.all: dict[str, Any] = {**(wrapper.init if wrapper else {}), **(wrapper.plan if wrapper else {})}
        self.all |= self.call
        self.sample = sample or {}

    def value(self, name: str, default: Any = None) -> Any:
        """A number, word or switch; the default for what was not given, or is something else."""
        value = self.all.get(name, default)
        if isinstance(value, Mapping) and "enum" in value:
            return value["enum"].rpartition(".")[2]
        return default if isinstance(value, (list, Mapping)) else value

    def number(self, *names: str) -> int:
        """The first of these that is a whole number."""
        for name in names:
            value = self.all.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        raise NoCaseError(f"{names[0]} was not recorded")

    def shape(self, *names: str) -> tuple[int, ...]:
        """The shape of the first of these that is a tensor."""
        for name in names:
            for one in tensors_in(self.all.get(name)):
                if all(one["tensor"]):
                    return tuple(one["tensor"])
        raise NoCaseError(f"{names[0]} was not recorded as a tensor with elements")

    def has(self, name: str) -> bool:
        return any(tensors_in(self.all.get(name)))

    def dtype(self, *names: str) -> str:
        """The type of the first of these that is a tensor or a type, in the spelling of flags."""
        for name in names:
            value = self.all.get(name)
            stated = [value] if isinstance(value, Mapping) and "dtype" in value else list(tensors_in(value))
            if stated:
                return OURS.get(stated[0]["dtype"], str(stated[0]["dtype"]))
        raise NoCaseError(f"the type of {names[0]} was not recorded")

    def numbers(self, *names: str) -> list[int]:
        """The lengths, values or counts that the first of these held, by its sample."""
        for name in names:
            sampled = self.sample.get(name, {})
            numbers = next((sampled[kind] for kind in ("lengths", "values", "counts") if sampled.get(kind)), None)
            if numbers:
                return list(numbers)
        raise NoCaseError(f"what {' and '.join(names)} held was not recorded")

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors that the call reads or writes whole: of no cache, and of no memory to work in."""
        whole = (value for name, value in self.call.items() if not any(part in name for part in IN_PART))
        return sum(nbytes(one) for value in whole for one in tensors_in(value))


def tensors_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping) and "tensor" in value:
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from tensors_in(one)


def nbytes(tensor: Mapping[str, Any]) -> int:
    return BYTES.get(tensor["dtype"], 1) * int(math.prod(one or 0 for one in tensor["tensor"]))


# What an estimate takes a GPU to do: bytes and operations a second of an H200, and the seconds of the smallest kernel,
# and of attention with next to no keys (evidence/traffic-h200.md).
# It orders cases and weighs what is not measured; no time that is reported comes from it.
BYTES_PER_S, FLOPS_PER_S, SMALLEST_S, ATTENTION_S = 4.8e12, 8e14, 2e-6, 10e-6
COUNTS = frozenset({"s_qo", "s_kv", "kv_len", "qo_len", "nnz_kv", "num_pages", *special_cases.ROWS})
LISTS = {"actual_seq_lens_kv": "kv", "actual_seq_lens_q": "q"}


class Effort(NamedTuple):
    """What a call has to do, for an estimate of its time."""

    nbytes: float
    flops: float = 0.0
    smallest: float = SMALLEST_S

    @property
    def seconds(self) -> float:
        return self.smallest + max(self.nbytes / BYTES_PER_S, self.flops / FLOPS_PER_S)


@dataclass(frozen=True)
class PosedProblem:
    """What a case measures of a call; `params` are those of the routine, in a form that can be stored."""

    routine: str
    backend: str
    params: Mapping[str, Any]
    seconds: float  # an estimate
    typed: Any = field(default=None, repr=False)

    @functools.cached_property
    def fixed(self) -> tuple[Any, ...]:
        """The facts that calls must share to be measured together."""
        free = COUNTS | LISTS.keys() | {"expert_counts"}
        shared = sorted((name, value) for name, value in self.params.items() if name not in free)
        return (self.routine, self.backend, *shared)

    @functools.cached_property
    def sizes(self) -> dict[str, float]:
        """The sizes that grow with a call's work: rows, requests, and the tokens of requests."""
        sizes = {name: float(value) for name, value in self.params.items() if name in COUNTS}
        lengths = {short: listed(text) for name, short in LISTS.items() if (text := self.params.get(name))}
        sizes |= {f"all {short}": float(sum(numbers)) for short, numbers in lengths.items()}
        if len(lengths) == 2:
            sizes["pairs"] = float(sum(q * kv for q, kv in zip(lengths["q"], lengths["kv"], strict=True)))
        if counts := self.params.get("expert_counts"):
            sizes["experts"] = float(sum(count > 0 for count in listed(counts)))
            sizes["fullest"] = float(max(listed(counts)))
        return sizes

    def case(self, backend: str) -> Case:
        return Case(routine_of(self.routine), Shape(self.typed), backend)


def routine_of(name: str) -> AnyRoutine:
    return all_routines()[name] if name in all_routines() else all_apis()[name]


def posed(x: CallArguments, routine: str, params: Mapping[str, Any], effort: Effort, backend: str = "") -> PosedProblem:
    """The problem, by the backend that the program asked for or got; raises NoCaseError."""
    kind = routine_of(routine)
    try:
        typed = kind.params(**params)
    except ParamError as error:
        raise NoCaseError(f"{routine}: {error}") from error
    return PosedProblem(routine, _backend(x, kind, backend), typed.as_json(), effort.seconds, typed=typed)


def _backend(x: CallArguments, routine: AnyRoutine, usual: str) -> str:
    """The asked-for one, which may be `auto`, else the resolved one, else the `usual` one of the API."""
    stated = (usual, x.value("backend"), x.backend, "auto", *routine.backends)
    named = (routine.backend_named(one) for one in stated if isinstance(one, str) and one)
    return next(one.name for one in named if one is not None)
