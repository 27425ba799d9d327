"""The settings of a run: read once from pytest's options, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.settings.option import SECONDS, one_of, whole

if TYPE_CHECKING:  # every session of pytest imports this module
    from pytest_flashinfer_perf.settings.project_file import Override, ProjectFile, Quarantined

InstrumentChoice = Literal["auto", "cupti", "events", "wall"]
GraphChoice = Literal["auto", "on", "off"]
ColdChoice = Literal["rotate", "flush", "none"]
PeaksChoice = Literal["measured", "datasheet"]
RefcheckChoice = Literal["on", "off", "only"]

# What the fields of Measuring may be, in Python and as options.
CHOICES = {
    "instrument": get_args(InstrumentChoice),
    "cuda_graph": get_args(GraphChoice),
    "cold_l2": get_args(ColdChoice),
    "peaks": get_args(PeaksChoice),
}
COUNTS = {"iters": whole(1), "warmup": whole(0), "max_time": SECONDS, "plant": SECONDS}
BOUNDS = {**{name: one_of(*names) for name, names in CHOICES.items()}, **COUNTS}


class MeasuringError(FlashinferPerfError, ValueError):
    """A field of Measuring has a value that it cannot have, or there is no such field."""


@dataclass(frozen=True)
class Measuring:
    """How calls are timed. `max_time` is pytest-benchmark's, for all timed calls of a case; `iters` overrides it."""

    instrument: InstrumentChoice = "auto"
    cuda_graph: GraphChoice = "auto"
    cold_l2: ColdChoice = "rotate"
    iters: int | None = None
    warmup: int | None = None
    max_time: float = 1.0
    peaks: PeaksChoice = "measured"
    plant: float = 0.0  # seconds of extra work after each timed call

    def __post_init__(self) -> None:
        self.verify({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def verify(cls, values: Mapping[str, Any]) -> None:
        """Raise MeasuringError for values that these fields cannot have."""
        for name, value in values.items():
            if name not in BOUNDS:
                raise MeasuringError(f"measuring: {unknown(str(name), BOUNDS)}")
            is_default = value is None and getattr(cls, name) is None
            if not (is_default or BOUNDS[name].allows(value)):
                raise MeasuringError(f"{name} {BOUNDS[name].refusal(value)}")

    def changed_by(self, asked: Asked) -> Measuring:
        """This Measuring with the fields that `asked` names; a Measuring names all of them."""
        if asked is None or isinstance(asked, Measuring):
            return asked or self
        if not isinstance(asked, Mapping):
            raise MeasuringError(f"measuring must be a Measuring, or a dictionary of its fields, got {asked!r}")
        self.verify(asked)
        return replace(self, **asked)


Asked = Measuring | Mapping[str, Any] | None


@dataclass(frozen=True)
class Checking:
    """Whether answers are compared with the reference, with which tolerances, and whether wrong ones are recorded."""

    refcheck: RefcheckChoice = "on"
    allow_output_mismatch: bool = False
    tolerances: tuple[Override, ...] = ()

    @property
    def off(self) -> bool:
        return self.refcheck == "off"

    @property
    def only(self) -> bool:
        return self.refcheck == "only"


def _no_file() -> ProjectFile:
    from pytest_flashinfer_perf.settings.project_file import ProjectFile

    return ProjectFile()


@dataclass(frozen=True)
class Settings:
    """All settings of a run."""

    suite: str = "default"
    backends: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    device: str = "auto"
    max_memory: float | None = None
    seed: int | None = None
    case_tag: str | None = None
    autotune_cache: str | None = None
    strict_skips: tuple[str, ...] = ()
    project: ProjectFile = field(default_factory=_no_file)
    measuring: Measuring = Measuring()
    checking: Checking = Checking()
    quarantine: tuple[Quarantined, ...] = ()
    plants: Mapping[str, float] = field(default_factory=dict)

    def of_test(self, test: str, measuring: Measuring, *, once: bool) -> Measuring:
        """This way to measure, with what is planted in this test; `once` if its answer alone is asked for."""
        planted = replace(measuring, plant=self.plants.get(test, measuring.plant))
        return replace(planted, iters=1, warmup=0) if once else planted
