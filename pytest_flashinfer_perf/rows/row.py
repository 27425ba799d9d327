"""The row: everything known about one measured case. `extra_info` in pytest-benchmark's JSON has its fields.

The text beside each type is the field's description in docs/row.md and in extra_info.schema.json.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.fields import FieldError
from pytest_flashinfer_perf.rows.parts import DECLARED, Parts

if TYPE_CHECKING:
    from pytest_flashinfer_perf.machine.devices import Device

T = TypeVar("T")
Status = Literal["ok", "noisy", "invalid", "wrong"]
# "memory?": no peak is known for the type of the FLOPs, so they may bind where the share is that of the memory's roof.
Bound = Literal["compute", "memory", "memory?", "link"]
GapOf = Literal["host", "graph"]
Refcheck = Literal["passed", "sampled", "wrong", "off", "not checked"]


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The names of a case, measured or not, and of the device that it was meant for."""

    case: Annotated[str, "routine and id, or the test's id: results are matched by it"]
    routine: Annotated[str | None, "the function that was measured"] = None
    family: Annotated[str | None, "`attention`, `gemm` or `moe`"] = None
    backend: Annotated[str | None, "the backend that was asked for"] = None
    shape: Annotated[str | None, "the id without its backend"] = None
    case_tag: Annotated[str | None, "by `--perf-case-tag` or the line of a testlist"] = None
    repro: Annotated[str | None, "a `pytest` line that runs this case again"] = None
    device: Annotated[str | None, "torch's name of the device"] = None
    device_name: Annotated[str | None, "the model of the GPU or CPU"] = None
    gpu_uuid: Annotated[str | None, "which card it is"] = None

    @property
    def place(self) -> str:
        """The name of the one device: times of two cards of one model are not the same measurement."""
        return self.gpu_uuid or self.device or ""

    def on(self, device: Device) -> Identity:
        """Add the names of the device that runs the case."""
        return dataclasses.replace(self, device=str(device.torch), device_name=device.name, gpu_uuid=device.uuid)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How the case was set up before it was timed."""

    tier: Annotated[str | None, "the tier of shapes that it is of; `null` for a shape that was named"] = None
    resolved_backend: Annotated[str | None, "what the backend chose: `auto` to `fa3`, `trtllm-native` to `xqa`"] = None
    autotuned: Annotated[bool | None, "whether FlashInfer's tuner ran before it was timed"] = None
    autotune_cache: Annotated[str | None, "the file of tactics that the tuner was given"] = None
    tactic: Annotated[
        str | None,
        "the runner and the tactic that the tuner answered with, `default` if it knew none",
    ] = None
    seed: Annotated[int | None, "of the inputs"] = None
    verbose: Annotated[int | None, "how often `-v` is given on the case's line"] = None
    inputs: Annotated[tuple[str, ...] | None, "each input's shape and type, with `-vv`"] = None
    repro_upstream: Annotated[
        str | None,
        "a `flashinfer_benchmark.py` line that runs it again, "
        "[if the script has such a case](formats.md#lines-for-the-old-script)",
    ] = None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """The work of a call, and the share of the device's roof that it reached."""

    flops: Annotated[float | None, "floating-point operations that the call needs"] = None
    bytes: Annotated[float | None, "bytes that cross the device's memory once"] = None
    flops_dtype: Annotated[
        str | None,
        "the type whose peak those FLOPs are compared with; `tf32` also if fp32 could not be as fast",
    ] = None
    tflops: Annotated[float | None, "that work over the median"] = None
    tb_per_sec: Annotated[float | None, "those bytes over the median"] = None
    sol_pct: Annotated[float | None, "the share of the roof's time, in percent"] = None
    bound: Annotated[
        Bound | None,
        "the side of [the roof](measurement.md#the-roof) that binds: `compute`, `memory`, `link`, or `memory?` of a "
        "type without a known peak",
    ] = None
    peaks: Annotated[str | None, "which roof: `measured` or `datasheet`"] = None


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The timed calls at one arrangement of their tensors in memory."""

    median: Annotated[float | None, "seconds"] = None
    busy: Annotated[float | None, "seconds of a call in which a kernel ran"] = None
    cycles: Annotated[float | None, "SM cycles"] = None
    addresses: Annotated[tuple[int, ...], "where the memory of each tensor begins that the call touches"] = ()


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How the times were taken: only rows that agree in it are comparable."""

    instrument: Annotated[str, "`cupti`, `events` or `wall`"] = "wall"
    fallback: Annotated[str | None, "why it is not the best instrument"] = None
    cold_l2: Annotated[str | None, "`rotate`, `flush` or `none`, as it really was"] = None
    rotations: Annotated[int | None, "how many argument sets were rotated"] = None
    cuda_graph: Annotated[bool | None, "whether calls were replayed from CUDA graphs"] = None
    host_bound: Annotated[bool | None, "whether kernels wait for their launches, so that it is the host's time"] = None
    cpu_threads: Annotated[int | None, "torch's threads, on a CPU"] = None
    warmups: Annotated[int | None, "untimed calls before the timed ones"] = None
    stopped: Annotated[
        str | None,
        "[what ended the timed calls](measurement.md#how-many-calls): `asked`, `precise`, `most calls`, `scatters`, "
        "`max time` or `wall time`",
    ] = None
    placements: Annotated[
        tuple[Placement, ...],
        "for each [placement](measurement.md#placements) its medians, in seconds and cycles, and where the memory of "
        "its tensors begins",
    ] = ()
    placement_spread: Annotated[float | None, "the standard deviation of those medians over their mean"] = None


@dataclass(frozen=True, kw_only=True)
class Library:
    """Which FlashInfer it was: with what of its requirements, and whose kernels ran."""

    implementation: Annotated[
        tuple[str, ...] | None,
        "[whose kernels](row.md#which-implementation-ran) ran, in order: `CUDA`, `CuTe DSL`, `cuDNN`, `cuBLAS`, "
        "`torch`, or `unknown`",
    ] = None
    requirements: Annotated[
        Mapping[str, str | None] | None,
        "the version of each package that FlashInfer requires; `null` for what is not installed",
    ] = None
    unmet: Annotated[
        Mapping[str, str] | None,
        "which of these, or of what these require, are missing or too old, and why",
    ] = None
    switches: Annotated[
        Mapping[str, str] | None,
        "variables of the environment that choose kernels; `set` where a value [may be a secret]"
        "(../pytest_flashinfer_perf/machine/switches.py)",
    ] = None


@dataclass(frozen=True, kw_only=True)
class KernelTrace:
    """One untimed call under CUPTI."""

    kernels: Annotated[tuple[str, ...] | None, "names of the kernels, in order"] = None
    kernel_runs: Annotated[tuple[int, ...] | None, "how often each of them ran"] = None
    kernel_s: Annotated[tuple[float, ...] | None, "the seconds of each, of all its runs together"] = None
    launches: Annotated[int | None, "kernels, copies and fills"] = None
    busy_s: Annotated[float | None, "the union of their intervals"] = None
    span_s: Annotated[float | None, "from the first start to the last end"] = None

    @property
    def idle_share(self) -> float:
        """The share of a call in which none of its kernels runs; 0 if it is not known."""
        return 1 - self.busy_s / self.span_s if self.busy_s and self.span_s else 0.0


@dataclass(frozen=True, kw_only=True)
class KernelsAndGaps:
    """The timed calls under CUPTI, split into the time in which their kernels ran and the gaps between them."""

    busy: Annotated[
        float | None,
        "the median of the seconds of a call in which a kernel, a copy or a fill ran",
    ] = None
    busy_per_call: Annotated[tuple[float, ...] | None, "of each timed call, in the order of its samples"] = None
    gap: Annotated[float | None, "the median of the seconds in which none ran"] = None
    gap_of: Annotated[
        GapOf | None,
        "`host`: kernels were launched one by one; `graph`: between those of a CUDA graph",
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClockReadings:
    """SM cycles between stamps before and after a call, and what NVML reported meanwhile."""

    cycles: Annotated[float | None, "the median per call, with the stamps' own launches (about 3.5 us)"] = None
    cycles_spread: Annotated[float | None, "their standard deviation over their mean"] = None
    cycles_per_call: Annotated[tuple[float, ...] | None, "of each call, back to back"] = None
    sm_ghz: Annotated[float | None, "the SM clock during those calls"] = None
    sm_ghz_per_call: Annotated[tuple[float, ...] | None, "of each call"] = None
    queued: Annotated[
        bool | None,
        "whether these calls were in the queue before the GPU reached them; else their cycles are the host's",
    ] = None
    throttle: Annotated[str | None, "why NVML says that the clock was held down meanwhile"] = None
    power_w: Annotated[float | None, "by NVML"] = None


@dataclass(frozen=True, kw_only=True)
class AnswerCheck:
    """The comparison of the call's outputs with the reference."""

    refcheck: Annotated[
        Refcheck | None,
        "`passed`, `sampled` of some rows of the outputs, `wrong` where that is allowed, `off`, or `not checked` "
        "without a reference",
    ] = None
    allow_output_mismatch: Annotated[bool | None, "whether a wrong answer was allowed"] = None
    refcheck_rows: Annotated[int | None, "how many rows of the outputs were compared; `null` for all"] = None
    refcheck_worst_abs: Annotated[float | None, "the largest error"] = None
    refcheck_worst_rel: Annotated[float | None, "the largest error over its row's rms"] = None


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How the measurement ended, and the resources that it took."""

    status: Annotated[
        Status | None,
        "`ok`, [`noisy`](measurement.md#noise), `invalid` if faster than both roofs, or `wrong` where that is allowed",
    ] = None
    spread: Annotated[float | None, "the standard deviation of the samples over their mean"] = None
    notes: Annotated[tuple[str, ...], "where it differs from what was asked for, and other remarks"] = ()
    peak_memory_bytes: Annotated[int | None, "allocated by torch at most, reference included"] = None
    contention: Annotated[
        Contention | None, "[what else ran](row.md#a-loaded-machine) beside calls on the host's clock"
    ] = None
    worker: Annotated[str | None, "xdist's name of the process"] = None
    case_s: Annotated[float | None, "seconds that the whole case took, inputs, building and checking included"] = None


@dataclass(frozen=True, kw_only=True)
class Stats:
    """pytest-benchmark's statistics of the samples, in seconds; NaN where the file has none."""

    median: float
    mean: float
    stddev: float
    iqr: float
    rounds: int
    total: float = math.nan
    data: tuple[float, ...] = ()  # `--benchmark-save` leaves them out unless `--benchmark-save-data` is given

    @classmethod
    def of(cls, samples: Iterable[float]) -> Stats:
        """The statistics that pytest-benchmark will write of these samples."""
        from pytest_benchmark import stats

        statistics: Any = stats.Stats()
        for sample in samples:
            statistics.update(sample)
        figures = {name: getattr(statistics, name) for name in ("median", "mean", "stddev", "iqr", "rounds", "total")}
        return cls(**figures, data=tuple(statistics.data))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One case measured in one process. A benchmark without the `perf` fixture has a name and stats alone."""

    name: str
    fullname: str
    stats: Stats
    identity: Identity
    params: Mapping[str, Any] = field(default_factory=dict)
    setup: Setup = Setup()
    throughput: Throughput = Throughput()
    provenance: Provenance = Provenance()
    library: Library = Library()
    trace: KernelTrace = KernelTrace()
    timed: KernelsAndGaps = KernelsAndGaps()
    clocks: ClockReadings = ClockReadings()
    check: AnswerCheck = AnswerCheck()
    execution: Execution = Execution()
    parts: Parts = field(default_factory=Parts)  # what extensions add
    facts: Mapping[str, Any] = field(default_factory=dict)  # a routine's own fields, and what the test itself has added

    @property
    def case(self) -> str:
        return self.identity.case

    @property
    def shape(self) -> str:
        """The case without its backend; of a call of a test's own the whole."""
        return self.identity.shape or self.case

    @property
    def median(self) -> float:
        return self.stats.median

    @property
    def status(self) -> Status | None:
        return self.execution.status

    @property
    def is_sound(self) -> bool:
        """Whether its time is that of the work: neither impossible nor of a wrong answer."""
        return self.status not in ("invalid", "wrong")

    @property
    def is_wrong(self) -> bool:
        return self.status == "wrong" or self.check.refcheck == "wrong"

    @property
    def conditions(self) -> tuple[str, ...]:
        """The facts that must be equal in rows that are compared, from the parts that have `conditions`."""
        return tuple(str(one.conditions) for one in self.parts.values() if hasattr(one, "conditions"))

    def part(self, name: str, kind: Callable[..., T]) -> T | None:
        """An extension's part of this row, also where the extension was not loaded when the row was read."""
        value = self.parts.get(name, self.facts.get(name))
        return fields.read(kind, value, f"{self.case}: {name}") if isinstance(value, Mapping) else value

    @property
    def is_ours(self) -> bool:
        """Whether this plugin measured it."""
        return self.status is not None

    @property
    def spread(self) -> float | None:
        """The standard deviation of the samples over their mean; None for a single one."""
        return self.stats.stddev / self.stats.mean if self.stats.rounds > 1 and self.stats.mean else None

    def extra_info(self) -> dict[str, Any]:
        """The fields of all parts by their names, as they stand in the file."""
        parts = (fields.written(part) for part in (*(getattr(self, name) for name in PARTS), self.parts))
        own = {name: value for part in parts for name, value in part.items()}
        return {**dict.fromkeys(DECLARED), **self.facts, **own}


TYPES = fields.types_of(Row)
PARTS: dict[str, Any] = {
    name: kind for name, kind in TYPES.items() if dataclasses.is_dataclass(kind) and kind is not Stats
}
NAMES = frozenset(name for kind in PARTS.values() for name in fields.types_of(kind))


def is_own(name: str) -> bool:
    """Whether this field is a row's or an extension's, and not a fact that a routine or a test adds."""
    return name in NAMES or name in DECLARED


OURS = {"case", "status", "instrument"}  # a benchmark that sets a field of its own does not have all of them


def read(entry: Any, where: str) -> Row:
    """Read one benchmark of pytest-benchmark's JSON."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("fullname"), str):
        raise FieldError(f"{where} lacks fullname")
    where = f"{where} ({entry['fullname']})"
    extra_info, params = (fields.object_in(entry, name, where) for name in ("extra_info", "params"))
    info = extra_info if extra_info.keys() >= OURS else {"case": entry["fullname"]}
    return Row(
        name=str(entry.get("name", "")),
        fullname=entry["fullname"],
        stats=_stats(entry.get("stats"), f"{where}: stats"),
        params=params,
        facts={name: value for name, value in extra_info.items() if not is_own(name) or info is not extra_info},
        parts=Parts.among(info, where),
        **{name: fields.read(kind, info, where) for name, kind in PARTS.items()},
    )


def _stats(values: Any, where: str) -> Stats:
    """Read the statistics, in which null stands for NaN, which JSON lacks."""
    if not isinstance(values, Mapping):
        return fields.read(Stats, values, where)
    times = {name: math.nan if value is None else value for name, value in values.items()}
    data = values.get("data") or []
    if isinstance(data, list):
        data = [math.nan if value is None else value for value in data]
    return fields.read(Stats, {**times, "data": data}, where)
