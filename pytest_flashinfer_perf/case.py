"""Case: a routine, its params, a backend and a seed; the unit that is collected, run, recorded and repeated."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_flashinfer_perf import flags
from pytest_flashinfer_perf.params import ParamError, Value
from pytest_flashinfer_perf.routine import AnyRoutine, Backend, Shape

DEFAULT_SEED = 42


@dataclass(frozen=True)
class Case:
    routine: AnyRoutine = field(repr=False)
    shape: Shape[Any]
    backend_name: str
    seed: int = DEFAULT_SEED
    tag: str | None = None
    autotune_cache: str | None = None

    @property
    def params(self) -> Any:
        return self.shape.params

    @property
    def backend(self) -> Backend[Any, Any]:
        return self.routine.backends[self.backend_name]

    @property
    def id(self) -> str:
        return f"{self.shape.id}-{self.backend_name}"

    @property
    def words(self) -> list[str]:
        """The case as flags, in upstream's syntax; `read` gives it back."""
        extras = ["--random_seed", str(self.seed)] if self.seed != DEFAULT_SEED else []
        extras += ["--case_tag", self.tag] if self.tag is not None else []
        extras += ["--autotune_cache", self.autotune_cache] if self.autotune_cache is not None else []
        return ["--routine", self.routine.name, "--backends", self.backend_name, *flags.write(self.params), *extras]

    @property
    def repro(self) -> str:
        return flags.join(["pytest", f"--perf-case={flags.join(self.words)}"])

    @property
    def repro_upstream(self) -> str:
        return flags.join(["python3", "flashinfer_benchmark.py", *self.words])

    @property
    def marks(self) -> dict[str, Value]:
        """What `-m 'perf(name=value)'` can select by; a float is a syntax error there, so it is written as a string."""
        settled = {name: str(v) if isinstance(v, float) else v for name, v in self.params.as_dict().items()}
        model = self.shape.model.name if self.shape.model else None
        return {"routine": self.routine.name, "backend": self.backend_name, "model": model, **settled}

    @property
    def json_params(self) -> dict[str, Value]:
        return {"routine": self.routine.name, "backend": self.backend_name, **self.params.as_json()}


def read(line: Iterable[str], routines: dict[str, AnyRoutine]) -> list[Case]:
    """One testlist line's cases, a case per backend."""
    general = flags.parser()
    general.add_argument("--routine", "-R", required=True)
    general.add_argument("--backends", nargs="+")
    general.add_argument("--random_seed", type=int, default=DEFAULT_SEED)
    general.add_argument("--case_tag")
    general.add_argument("--autotune_cache")
    known, rest = general.parse_known_args(list(line))
    routine = routine_named(known.routine, routines)
    shape = Shape(flags.read(routine.params, rest))
    names = [backend_named(name, routine) for name in known.backends or routine.backends]
    said = (known.random_seed, known.case_tag, known.autotune_cache)
    return [Case(routine, shape, name, *said) for name in names]


def routine_named(name: str, routines: dict[str, AnyRoutine]) -> AnyRoutine:
    if name not in routines:
        raise ParamError(f"routine: {unknown(name, routines)}")
    return routines[name]


def backend_named(name: str, routine: AnyRoutine) -> str:
    backend = routine.backend_named(name)
    if backend is None:
        raise ParamError(f"backends: {unknown(name, [*routine.backends, *routine.aliases])} of {routine.name}")
    return backend.name


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say of a name nobody has."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown name {name!r}, {hint}known are {', '.join(names)}"
