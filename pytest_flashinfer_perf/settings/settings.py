"""The settings of a run: read once from pytest's options, never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.settings.option import (
    CASES,
    CHECKING,
    DEFAULT_SEED,
    GIB,
    REPEATABLE,
    SECONDS,
    SEED,
    TIMING,
    Child,
    bounded,
    bounds_of,
    choice,
    setting,
    whole,
)

if TYPE_CHECKING:  # every session of pytest imports this module
    from pytest_flashinfer_perf.settings.project_file import Override, ProjectFile, Quarantined

InstrumentChoice = Literal["auto", "cupti", "events", "wall"]
GraphChoice = Literal["auto", "on", "off"]
ColdChoice = Literal["rotate", "flush", "none"]
PeaksChoice = Literal["measured", "datasheet"]
RefcheckChoice = Literal["on", "off", "only"]


class MeasuringError(FlashinferPerfError, ValueError):
    """A field of Measuring has a value that it cannot have, or there is no such field."""


@dataclass(frozen=True)
class Measuring:
    """How calls are timed. `max_time` is pytest-benchmark's, for all timed calls of a case; `iters` overrides it."""

    instrument: InstrumentChoice = setting(
        TIMING,
        "--perf-instrument",
        **choice(*get_args(InstrumentChoice)),
        default="auto",
        help="Read the time from CUPTI, CUDA events or the host's clock (wall). auto takes the first that works. "
        "Default: %(default)s.",
    )
    cuda_graph: GraphChoice = setting(
        TIMING,
        "--perf-cuda-graph",
        **choice(*get_args(GraphChoice)),
        default="auto",
        help="Replay calls from CUDA graphs. auto does so for cases of the suite, not for perf.time(). "
        "Default: %(default)s.",
    )
    cold_l2: ColdChoice = setting(
        TIMING,
        "--perf-cold-l2",
        **choice(*get_args(ColdChoice)),
        default="rotate",
        help="Make the L2 cold before each call: rotate copies of the arguments, flush it, or leave it warm (none). "
        "Default: %(default)s.",
    )
    iters: int | None = setting(
        TIMING,
        "--perf-iters",
        metavar="N",
        type=whole(1),
        help="Time exactly N calls of each case. Default: as many as make its time precise.",
    )
    warmup: int | None = setting(
        TIMING,
        "--perf-warmup",
        metavar="N",
        type=whole(0),
        help="Make exactly N untimed calls of each case first. Default: up to 2 for each set of buffers.",
    )
    cpu_threads: int = setting(
        TIMING,
        "--perf-cpu-threads",
        metavar="N",
        type=whole(1),
        default=1,
        help="Let torch use N threads where calls are measured on the CPU. Default: %(default)s.",
    )
    max_time: float = bounded(SECONDS, 1.0)
    peaks: PeaksChoice = setting(
        TIMING,
        "--perf-peaks",
        **choice(*get_args(PeaksChoice)),
        default="measured",
        help="Take the peaks for %%roof from a measurement on this GPU, or from its datasheet. Default: %(default)s.",
    )

    def __post_init__(self) -> None:
        self.verify({one.name: getattr(self, one.name) for one in fields(self)})

    @classmethod
    def verify(cls, values: Mapping[str, Any]) -> None:
        """Raise MeasuringError for values that these fields cannot have."""
        bounds = bounds_of(cls)
        for name, value in values.items():
            if name not in bounds:
                raise MeasuringError(f"measuring: {unknown(str(name), bounds)}")
            is_default = value is None and getattr(cls, name) is None
            if not (is_default or bounds[name].allows(value)):
                raise MeasuringError(f"{name} {bounds[name].refusal(value)}")

    def changed_by(self, changes: MeasuringLike) -> Measuring:
        """This Measuring with the fields that `changes` names; a Measuring names all of them."""
        if changes is None or isinstance(changes, Measuring):
            return changes or self
        if not isinstance(changes, Mapping):
            raise MeasuringError(f"measuring must be a Measuring, or a dictionary of its fields, got {changes!r}")
        self.verify(changes)
        return replace(self, **changes)

    @property
    def of_one_call(self) -> Measuring:
        """The same for a single call, where its answer alone is asked for."""
        return replace(self, iters=1, warmup=0)


MeasuringLike = Measuring | Mapping[str, Any] | None


@dataclass(frozen=True)
class Checking:
    """Whether answers are compared with the reference, with which tolerances, and whether wrong ones are recorded."""

    refcheck: RefcheckChoice = setting(
        CHECKING,
        "--perf-refcheck",
        daily=True,
        choices=get_args(RefcheckChoice),
        default="on",
        help="Compare answers with the reference: beside timing (on), not at all (off), or without timing (only). "
        "Default: %(default)s.",
    )
    allow_output_mismatch: bool = setting(
        CHECKING,
        "--perf-allow-output-mismatch",
        action="store_true",
        help="Keep cases with a wrong answer as rows of the status `wrong`, instead of failing them.",
    )
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

    suite: str | None = setting(
        CASES,
        "--perf-suite",
        daily=True,
        choices=("smoke", "default", "full", "plan"),
        help="Tier of shapes to run: a few (smoke), the usual ones (default), those of all models (full), or batches "
        "from 1 to 4,096 of what has a plan() (plan). Default: default, and smoke on a CPU.",
    )
    named_backends: str | None = setting(
        CASES,
        "--perf-backends",
        daily=True,
        metavar="A,B",
        help="Run these backends only. Default: all backends of a routine.",
    )
    cases: tuple[str, ...] = setting(
        CASES,
        "--perf-case",
        daily=True,
        metavar="FLAGS",
        **REPEATABLE,
        help="Run exactly this case, by its flags, as the field `repro` of a row has them (repeatable).",
    )
    max_memory: float | None = setting(
        CASES,
        "--perf-max-memory",
        metavar="GIB",
        type=GIB,
        help="Skip cases that need more memory than this, by estimate. Default: the free memory.",
    )
    device: str = setting(
        TIMING,
        "--perf-device",
        daily=True,
        child=Child.OWN,
        metavar="DEVICE",
        default="auto",
        help="Device to measure on: auto (the first GPU, else the CPU), cuda, cuda:N, cpu, or cpu:any, by which "
        "workers measure at the same time, with more noise. Default: %(default)s.",
    )
    seed: int | None = setting(
        TIMING, "--perf-seed", metavar="N", type=SEED, help=f"Seed of the random inputs. Default: {DEFAULT_SEED}."
    )
    autotune_cache: str | None = setting(
        TIMING,
        "--perf-autotune-cache",
        metavar="FILE",
        help="Cache file of FlashInfer's autotuner. Cases with --autotune write it, other cases read it. "
        "Default: no file.",
    )
    case_tag: str | None = setting(
        TIMING,
        "--perf-case-tag",
        may_be_empty=True,
        metavar="TAG",
        help="Text to write into every row, such as nightly.",
    )
    strict_skips: tuple[str, ...] = setting(
        CHECKING,
        "--perf-strict-skips",
        child=Child.OWN,
        metavar="GLOB",
        **REPEATABLE,
        help="Fail tests whose id matches this pattern if they are skipped (repeatable).",
    )
    project: ProjectFile = field(default_factory=_no_file)
    measuring: Measuring = Measuring()
    checking: Checking = Checking()
    quarantine: tuple[Quarantined, ...] = ()

    @property
    def backends(self) -> tuple[str, ...]:
        return tuple((self.named_backends or "").replace(",", " ").split())
