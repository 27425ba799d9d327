"""Case: a routine, its params, a backend and a seed; the unit that is collected, run, recorded and repeated."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.runs.row import Identity
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.params import ParamError, Value, fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Backend, Shape

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device

DEFAULT_SEED = 42
# Upstream's general flags that say nothing here: checks are made anyway, and repro commands always written.
SAY_NOTHING = ("--use_cupti", "--refcheck", "--generate_repro_command")


@dataclass(frozen=True)
class Said:
    """How a line of flags wants its case measured, where that is not as the run is."""

    num_iters: int | None = None
    dry_run_iters: int | None = None
    no_cuda_graph: bool = False
    use_cuda_events: bool = False
    verbose: int = 0
    allow_output_mismatch: bool = False

    def __post_init__(self) -> None:
        for name, least in (("num_iters", 1), ("dry_run_iters", 0)):
            said = getattr(self, name)
            if said is not None and said < least:
                raise ParamError(f"{name}: must be at least {least}, got {said}")

    @property
    def words(self) -> list[str]:
        counts = ((f"--{name}", str(getattr(self, name))) for name in COUNTS if getattr(self, name) is not None)
        told = [f"-{'v' * self.verbose}"] * bool(self.verbose)
        return [w for words in counts for w in words] + [f"--{n}" for n in SWITCHES if getattr(self, n)] + told

    def over(self, run: Measuring, device: Device) -> Measuring:
        """CUDA's events are a GPU's: elsewhere there is one clock, and the row says which."""
        asked: dict[str, Any] = {"iters": self.num_iters, "warmup": self.dry_run_iters}
        asked["cuda_graph"] = "off" if self.no_cuda_graph else None
        asked["instrument"] = "events" if self.use_cuda_events and device.is_gpu else None
        return replace(run, **{name: value for name, value in asked.items() if value is not None})

    def allowing(self, run: Checking) -> Checking:
        return replace(run, allow_output_mismatch=True) if self.allow_output_mismatch else run


COUNTS = ("num_iters", "dry_run_iters")
SWITCHES = ("no_cuda_graph", "use_cuda_events", "allow_output_mismatch")


@dataclass(frozen=True)
class Case:
    routine: AnyRoutine = field(repr=False)
    shape: Shape[Any]
    backend_name: str
    seed: int = DEFAULT_SEED
    tag: str | None = None
    autotune_cache: str | None = None
    said: Said = Said()
    nth: int = 1  # of those that a testlist has of it

    @property
    def params(self) -> Any:
        return self.shape.params

    @property
    def backend(self) -> Backend[Any, Any]:
        return self.routine.backends[self.backend_name]

    @property
    def id(self) -> str:
        return f"{self.shape.id}-{self.backend_name}" + f"-{self.nth}" * (self.nth > 1)

    @property
    def words(self) -> list[str]:
        """The case as flags, in upstream's syntax; `read` gives it back."""
        return ["--routine", self.routine.name, "--backends", self.backend_name, *self.words_beside]

    @property
    def words_beside(self) -> list[str]:
        """Those that name neither routine nor backend."""
        extras = ["--random_seed", str(self.seed)] if self.seed != DEFAULT_SEED else []
        extras += ["--case_tag", self.tag] if self.tag is not None else []
        extras += ["--autotune_cache", self.autotune_cache] if self.autotune_cache is not None else []
        return [*flags.write(self.params), *extras, *self.said.words]

    @property
    def repro(self) -> str:
        return flags.join(["pytest", f"--perf-case={flags.join(self.words)}"])

    @property
    def identity(self) -> Identity:
        """What it is known by, whether it was measured or not."""
        return Identity(
            case=f"{self.routine.name}/{self.id}",
            routine=self.routine.name,
            family=self.routine.family,
            backend=self.backend_name,
            shape=self.shape.id,
            case_tag=self.tag,
            repro=self.repro,
        )

    @property
    def marks(self) -> dict[str, Value]:
        """What `-m 'perf(name=value)'` can select by; a float is a syntax error there, so it is written as a string."""
        settled = {name: str(v) if isinstance(v, float) else v for name, v in self.params.as_dict().items()}
        model = self.shape.model.name if self.shape.model else None
        return {"routine": self.routine.name, "backend": self.backend_name, "model": model, **settled}

    @property
    def json_params(self) -> dict[str, Value]:
        return {"routine": self.routine.name, "backend": self.backend_name, **self.params.as_json()}


class Line(NamedTuple):
    """What one testlist line says."""

    routine: AnyRoutine
    shape: Shape[Any]
    backends: tuple[str, ...]
    beside: tuple[int, str | None, str | None, Said]

    def case(self, backend: str) -> Case:
        return Case(self.routine, self.shape, backend_named(backend, self.routine), *self.beside)


def read(line: Iterable[str], routines: dict[str, AnyRoutine]) -> list[Case]:
    """A line's cases, a case per backend."""
    said = parse(line, routines)
    return [said.case(name) for name in said.backends or said.routine.backends]


def parse(line: Iterable[str], routines: dict[str, AnyRoutine]) -> Line:
    words = list(line)
    routine = _routine_of(words, routines)
    beside = flags_of_family(routine, routines)
    spelled = [
        *(name for names in GENERAL for name in names),
        *(f"--{name}" for name in {*beside, *routine.params.ignores}),
    ]
    known, rest = _general().parse_known_args(flags.expanded(words, spelled))
    shape = Shape(flags.read(routine.params, rest, beside, [names[0] for names in GENERAL]))
    said = Said(**{name: getattr(known, name) for name in (*COUNTS, *SWITCHES, "verbose")})
    return Line(
        routine, shape, tuple(known.backends or ()), (known.random_seed, known.case_tag, known.autotune_cache, said)
    )


def _routine_of(words: list[str], routines: dict[str, AnyRoutine]) -> AnyRoutine:
    """It is looked for by itself: which flags there are, so that a short one can be told, depends on it."""
    named = flags.parser(shortened=True)
    named.add_argument("--routine", "-R")
    known, rest = named.parse_known_args(words)
    if known.routine is None:
        raise ParamError(_without_routine(rest))
    return routine_named(known.routine, routines)


# Upstream's flags of any routine, and how argparse reads them.
GENERAL: dict[tuple[str, ...], dict[str, Any]] = {
    ("--routine", "-R"): {},
    ("--backends",): {"nargs": "+"},
    ("--random_seed",): {"type": int, "default": DEFAULT_SEED},
    ("--num_iters", "-n"): {"type": int},
    ("--dry_run_iters", "-d"): {"type": int},
    ("--verbose", "-v"): {"action": "count", "default": 0},
    **{(name,): {} for name in ("--case_tag", "--autotune_cache", "--output_path", "--repro_command")},
    **{(name,): {"action": "store_true"} for name in (*(f"--{name}" for name in SWITCHES), *SAY_NOTHING)},
}
MEASURED = ("--routine", "--testlist")  # by the one or by the other, in a command


def _general() -> argparse.ArgumentParser:
    general = flags.parser()
    for names, how in GENERAL.items():
        general.add_argument(*names, **how)
    return general


def _without_routine(words: Iterable[str]) -> str:
    typed = next((word for word in words if difflib.get_close_matches(word, MEASURED, cutoff=0.8)), None)
    return flags.unknown(typed, MEASURED) if typed else flags.required(["--routine/-R"])


def flags_of_family(routine: AnyRoutine, routines: dict[str, AnyRoutine]) -> set[str]:
    """Flags that upstream takes in a line of any routine of a family, and of PDL in a line of any."""
    family = [r.params for r in routines.values() if r.family == routine.family]
    return {"enable_pdl", *(word for params in family for field in fields_of(params) for word in field.spellings)}


class UnknownRoutineError(ParamError):
    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(sentence)
        self.name = name


def routine_named(name: str, routines: dict[str, AnyRoutine]) -> AnyRoutine:
    if name not in routines:
        raise UnknownRoutineError(name, f"routine: {unknown(name, sorted(routines))}")
    return routines[name]


def backend_named(name: str, routine: AnyRoutine) -> str:
    backend = routine.backend_named(name)
    if backend is None:
        known = sorted([*routine.backends, *routine.aliases])
        raise ParamError(f"backends: {unknown(name, known)} of {routine.name}")
    return backend.name
