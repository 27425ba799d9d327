"""Case: a routine, its params, a backend and a seed; the unit that is collected, run, recorded and repeated."""

from __future__ import annotations

import argparse
import difflib
import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.settings.option import DEFAULT_SEED, SEED
from pytest_flashinfer_perf.settings.project_file import Quarantined
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.params import SHORT, ParamError, Value, fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Backend, Routine, Shape, naming_flags

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device

Translate = Callable[[list[str]], list[str]]
STAND_IN = "torch"  # the backend that is measured beside the others where there is no GPU
# Upstream's general flags without effect here: answers are always checked, repro commands always written.
WITHOUT_EFFECT = ("--use_cupti", "--refcheck", "--generate_repro_command")


@dataclass(frozen=True)
class CaseOptions:
    """Flags of a line that override the run's own options for its case."""

    num_iters: int | None = None
    dry_run_iters: int | None = None
    no_cuda_graph: bool = False
    use_cuda_events: bool = False
    verbose: int = 0
    allow_output_mismatch: bool = False
    autotune: bool = False  # of a routine whose parameters have no such field

    def __post_init__(self) -> None:
        for name, least in (("num_iters", 1), ("dry_run_iters", 0)):
            count = getattr(self, name)
            if count is not None and count < least:
                raise ParamError(f"{name}: must be at least {least}, got {count}")

    @property
    def words(self) -> list[str]:
        counts = ((f"--{name}", str(getattr(self, name))) for name in COUNTS if getattr(self, name) is not None)
        verbose = [f"-{'v' * self.verbose}"] * bool(self.verbose)
        return [w for words in counts for w in words] + [f"--{n}" for n in SWITCHES if getattr(self, n)] + verbose

    def applied_to(self, run: Measuring, device: Device) -> Measuring:
        """The run's way to measure with these options; CUDA events are ignored without a GPU."""
        changes: dict[str, Any] = {"iters": self.num_iters, "warmup": self.dry_run_iters}
        changes["cuda_graph"] = "off" if self.no_cuda_graph else None
        changes["instrument"] = "events" if self.use_cuda_events and device.is_gpu else None
        return replace(run, **{name: value for name, value in changes.items() if value is not None})

    def applied_to_checking(self, run: Checking) -> Checking:
        """The run's way to check answers, with this case's `--allow_output_mismatch`."""
        return replace(run, allow_output_mismatch=True) if self.allow_output_mismatch else run


COUNTS = ("num_iters", "dry_run_iters")
SWITCHES = ("no_cuda_graph", "use_cuda_events", "allow_output_mismatch", "autotune")


class CaseOfTest(Protocol):
    """A case, or what an extension gives a test in its place, as which it is named, marked and selected."""

    @property
    def routine(self) -> AnyRoutine: ...
    @property
    def backend(self) -> Backend[Any, Any]: ...
    @property
    def id(self) -> str: ...
    @property
    def marks(self) -> Mapping[str, Any]: ...
    @property
    def keywords(self) -> set[str]: ...


@dataclass(frozen=True)
class Case:
    routine: AnyRoutine = field(repr=False)
    shape: Shape[Any]
    backend_name: str
    seed: int = DEFAULT_SEED
    tag: str | None = None
    autotune_cache: str | None = None
    options: CaseOptions = CaseOptions()
    nth: int = 1  # occurrence in a testlist
    stands_in: bool = False  # nobody named its backend: it runs where there is no GPU, if it is small
    tier: str | None = field(default=None, compare=False)  # that it was taken from

    def __post_init__(self) -> None:
        if not SEED.allows(self.seed):
            raise ParamError(f"seed {SEED.refusal(self.seed)}")

    @property
    def params(self) -> Any:
        return self.shape.params

    @property
    def backend(self) -> Backend[Any, Any]:
        return self.routine.backends[self.backend_name]

    @property
    def id(self) -> str:
        tuned = "-autotune" * self.options.autotune
        return f"{self.shape.id}-{self.backend_name}{tuned}" + f"-{self.nth}" * (self.nth > 1)

    @property
    def autotunes(self) -> bool:
        """Whether FlashInfer's tuner is to choose the kernel before it is timed."""
        return self.options.autotune or getattr(self.params, "autotune", False)

    @property
    def words(self) -> list[str]:
        """The case as flags in upstream's syntax, which `parse` reads."""
        return [self.routine.named_by[0], self.routine.name, "--backends", self.backend_name, *self.words_beside]

    @property
    def words_beside(self) -> list[str]:
        """The flags other than routine and backend."""
        extras = ["--random_seed", str(self.seed)] if self.seed != DEFAULT_SEED else []
        extras += ["--case_tag", self.tag] if self.tag is not None else []
        extras += ["--autotune_cache", self.autotune_cache] if self.autotune_cache is not None else []
        return [*flags.write(self.params), *extras, *self.options.words]

    @property
    def repro(self) -> str:
        return flags.join(["pytest", f"--perf-case={flags.join(self.words)}"])

    @property
    def identity(self) -> Identity:
        """The fields that identify the case, whether it was measured or not."""
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
        """The parameters for `-m 'perf(name=value)'`, where a float is a syntax error and therefore a string."""
        params = {name: str(v) if isinstance(v, float) else v for name, v in self.params.as_dict().items()}
        model = self.shape.model.name if self.shape.model else None
        return {"routine": self.routine.name, "backend": self.backend_name, "model": model, **params}

    @property
    def keywords(self) -> set[str]:
        """The names that `-k` selects it by, with its model and its types, however these are written."""
        model = {self.shape.model.name} if self.shape.model else set()
        params = self.params
        values = (getattr(params, f.name) for f in fields_of(type(params)) if f.name.endswith("dtype"))
        dtypes = {name for name in values if name is not None}
        return self.routine.keywords(self.backend_name) | model | dtypes | {SHORT.get(name, name) for name in dtypes}

    @property
    def json_params(self) -> dict[str, Value]:
        return {"routine": self.routine.name, "backend": self.backend_name, **self.params.as_json()}


class FlagLine(NamedTuple):
    """A parsed line of flags."""

    routine: AnyRoutine
    shape: Shape[Any]
    backends: tuple[str, ...]
    settings: tuple[int, str | None, str | None, CaseOptions]
    general: argparse.Namespace

    @property
    def usual(self) -> list[str]:
        """The backends that are measured where the line names none."""
        return [name for name in self.routine.backends if name != STAND_IN]

    def case(self, backend: str) -> Case:
        return Case(self.routine, self.shape, backend_named(backend, self.routine), *self.settings)

    def cases(self) -> list[Case]:
        """A case per backend: those that the line names, or all."""
        return [self.case(name) for name in self.backends or self.routine.backends]


def parse(line: Iterable[str], routines: dict[str, AnyRoutine]) -> FlagLine:
    words = list(line)
    routine = routine_named(name_in(words), routines)
    return parse_of(routine, words, flags_of_family(routine, routines))


def parse_of(
    routine: AnyRoutine, words: list[str], accepted: Collection[str], translated: Translate = list
) -> FlagLine:
    """A line of this routine; all but the general flags may be `translated` from those of another program."""
    general = flags.parser()
    shared = {**{names: {"dest": "routine"} for names in naming_flags()}, **GENERAL}
    for names, how in shared.items():
        general.add_argument(*names, **how)
    own = [f"--{name}" for name in {*accepted, *routine.params.ignores}]
    spellings = [*(name for names in shared for name in names), *own]
    parsed, rest = general.parse_known_args(flags.expanded(words, spellings))
    if parsed.autotune and not routine.tunes_by_flag:  # one of the routine's own flags, if it has it
        rest = [*rest, "--autotune"]
    shape = Shape(flags.read(routine.params, translated(rest), accepted, [names[0] for names in shared]))
    options = {name: getattr(parsed, name) for name in (*COUNTS, *SWITCHES, "verbose")}
    case_options = CaseOptions(**{**options, "autotune": parsed.autotune and routine.tunes_by_flag})
    settings = (parsed.random_seed, parsed.case_tag, parsed.autotune_cache, case_options)
    return FlagLine(routine, shape, tuple(parsed.backends or ()), settings, parsed)


def name_in(words: list[str]) -> str:
    """The routine of a line, parsed first, since the flags that can be abbreviated depend on it."""
    parser = flags.parser(shortened=True)
    for names in naming_flags():
        parser.add_argument(*names, dest="routine")
    parsed, rest = parser.parse_known_args(words)
    if parsed.routine is None:
        typed = next((word for word in rest if difflib.get_close_matches(word, REQUIRED, cutoff=0.8)), None)
        raise ParamError(flags.unknown(typed, REQUIRED) if typed else flags.required(["--routine/-R"]))
    return str(parsed.routine)


# Upstream's flags of any routine beside its name, and how argparse reads them.
GENERAL: dict[tuple[str, ...], dict[str, Any]] = {
    ("--backends", "--ar_backend"): {"nargs": "+"},
    ("--random_seed",): {"type": SEED, "default": DEFAULT_SEED},
    ("--num_iters", "-n"): {"type": int},
    ("--dry_run_iters", "-d"): {"type": int},
    ("--verbose", "-v"): {"action": "count", "default": 0},
    **{(name,): {} for name in ("--case_tag", "--autotune_cache", "--output_path", "--repro_command")},
    **{(name,): {"action": "store_true"} for name in (*(f"--{name}" for name in SWITCHES), *WITHOUT_EFFECT)},
}
REQUIRED = ("--routine", "--testlist")  # one of them, in a command


def flags_of_family(routine: AnyRoutine, routines: dict[str, AnyRoutine]) -> set[str]:
    """Flags that upstream accepts for every routine of a family, and --enable_pdl, accepted for all."""
    family = [r.params for r in routines.values() if r.family == routine.family]
    return {"enable_pdl", *(word for params in family for field in fields_of(params) for word in field.spellings)}


class MissingCaseError(ParamError):
    """The line is valid and this project has no case for it; the sentence has the reason."""


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
        names = sorted([*routine.backends, *routine.aliases])
        raise ParamError(f"backends: {unknown(name, names)} of {routine.name}")
    return backend.name


# Select cases by a glob over `routine/id` or by flags.

Routines = Mapping[str, AnyRoutine]


class Selection(NamedTuple):
    """The values of fields and the backends in a line of flags; all backends if it names none."""

    backends: tuple[str, ...]
    fields: dict[str, Value]

    def holds(self, case: Case) -> bool:
        if self.backends and case.backend_name not in self.backends:
            return False
        return all(getattr(case.params, name) == value for name, value in self.fields.items())


def parse_selector(line: str, routine: AnyRoutine, routines: Routines) -> Selection | None:
    """Parse the line for this routine, None if it names another one."""
    with_this = {**routines, routine.name: routine}
    general = flags.parser()
    for names in naming_flags():
        general.add_argument(*names, dest=names[0])
    general.add_argument("--backends", nargs="+", default=[])
    parsed, rest = general.parse_known_args(flags.split(line))
    named = {names: getattr(parsed, names[0]) for names in naming_flags() if getattr(parsed, names[0]) is not None}
    if Routine.named_by in named:
        routine_named(named[Routine.named_by], with_this)
    if any(names != routine.named_by or name != routine.name for names, name in named.items()):
        return None
    backends = tuple(backend_named(name, routine) for name in parsed.backends)
    return Selection(backends, flags.read_some(routine.params, rest, flags_of_family(routine, with_this)))


def selects(line: str, case: Case, routines: Routines) -> bool:
    if not line.startswith("-"):
        return fnmatch.fnmatchcase(f"{case.routine.name}/{case.id}", line)
    selection = parse_selector(line, case.routine, routines)
    return selection is not None and selection.holds(case)


def selects_no_routine(line: str, routines: Routines) -> bool:
    """Whether no routine is selected; raises ParamError for flags that cannot be parsed."""
    if line.startswith("-"):
        return all(parse_selector(line, routine, routines) is None for routine in routines.values())
    return not any(fnmatch.fnmatchcase(name, line.partition("/")[0]) for name in routines)


def quarantined(case: Case, entries: Iterable[Quarantined], routines: Routines) -> Quarantined | None:
    return next((entry for entry in entries if selects(entry.which, case, routines)), None)
