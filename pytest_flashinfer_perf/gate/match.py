"""The two sides of a comparison: which rows belong together, and what prevents a verdict on them.

A case is matched by its name in all runs of both sides. There is no verdict where it failed, has a wrong answer or no
row (`trouble`), or where its rows were not measured alike: on another GPU, by another instrument (`FACETS`).
`--perf-gate-allow` admits such differences by name. How much slower a sound case became is left to `effects.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import FAILED, Run, Unmeasured
from pytest_flashinfer_perf.rows.scatter import is_measured

RunRow = tuple[Run, Row]

ROUNDED = 0.01  # the most that a writer of such files may round by


class Reason(str, Enum):
    """Why a case has its verdict, as a code for programs; the sentence beside it is for people.

    That of an extension's quantity is `slower` or `faster`, a hyphen and the figure's name.
    """

    # The case is MISSING, by what became of its test.
    FAILED = FAILED
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    DESELECTED = "deselected"
    VANISHED = "vanished"
    # Its rows are INVALID.
    WRONG_ANSWER = "wrong-answer"
    WRONG_BASELINE = "wrong-baseline"
    BEYOND_ROOF = "beyond-roof"
    NO_TIME = "no-time"
    NO_FIGURE = "no-figure"
    TWICE = "twice"
    TORN = "torn"
    # They were not measured alike.
    MODEL = "model"
    GPU = "gpu"
    DRIVER = "driver"
    INSTRUMENT = "instrument"
    COLD_L2 = "cold-l2"
    CUDA_GRAPH = "cuda-graph"
    CONDITIONS = "conditions"
    THREADS = "threads"
    SEED = "seed"
    REQUIREMENTS = "requirements"
    # It was compared, or is NEW.
    NEW = "new"
    SLOWER = "slower"
    FASTER = "faster"
    SLOWER_GAPS = "slower-gaps"
    FASTER_GAPS = "faster-gaps"
    WITHIN_THRESHOLD = "within-threshold"
    NOT_SIGNIFICANT = "not-significant"
    NOT_CONFIRMED = "not-confirmed"
    TWO_SPEEDS = "two-speeds"
    INSTRUMENTS_DISAGREE = "instruments-disagree"
    CANNOT_SEE = "cannot-see"
    TIME_ONLY = "time-only"
    CYCLES_ONLY = "cycles-only"
    LOADED = "busy"
    FEW_CALLS = "few-calls"

    __str__ = str.__str__


# `--perf-gate-allow` does not permit these: an answer was wrong, or the case broke.
NEVER_ALLOWED = (Reason.WRONG_ANSWER, Reason.FAILED)
OF_A_TEST = {one.value: one for one in (Reason.FAILED, Reason.SKIPPED, Reason.XFAILED, Reason.DESELECTED)}


@dataclass(frozen=True)
class ComparedCase:
    """The rows of one case on both sides. If paired, the n-th of both sides belong together.

    `incomplete_pair`: one side of a pair lacks the case. `left_out`: so many rows, or pairs, are not here since others
    used the machine. A case that failed, and that neither side measured, has no rows.
    """

    name: str
    base: tuple[RunRow, ...]
    head: tuple[RunRow, ...]
    incomplete_pair: bool = False
    left_out: int = 0

    @property
    def before(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.base)

    @property
    def after(self) -> tuple[Row, ...]:
        return tuple(row for _, row in self.head)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The first of them says what the case is."""
        return (*self.after, *self.before)

    @property
    def names(self) -> tuple[str, ...]:
        """Runs know a case without a row by its name or by its test's id."""
        return tuple(dict.fromkeys((self.name, *(row.fullname for row in self.rows))))


def cases(base: Sequence[Run], head: Sequence[Run], *, paired: bool) -> list[ComparedCase]:
    """Every case that a run of either side measured, then those that failed in head and were measured nowhere."""
    names = dict.fromkeys(name for run in (*base, *head) for name in run.by_case)
    measured = [_case(name, base, head, paired=paired) for name in names]
    listed = {name for case in measured for name in case.names}
    failed = dict.fromkeys(name for run in head for name in run.failed if name not in listed)
    return [*measured, *(ComparedCase(name, (), ()) for name in failed)]


def _case(name: str, base: Sequence[Run], head: Sequence[Run], *, paired: bool) -> ComparedCase:
    """Collect the rows of one case; of pairs only the complete ones, if there are any."""
    pairs = list(zip(base, head, strict=True)) if paired else []
    whole = [pair for pair in pairs if all(name in run.by_case for run in pair)]
    incomplete_pair = bool(whole) and any((name in b.by_case) != (name in h.by_case) for b, h in pairs)
    sides = zip(*whole, strict=True) if whole else (base, head)
    before, after = (tuple((run, run.by_case[name]) for run in side if name in run.by_case) for side in sides)
    return ComparedCase(name, before, after, incomplete_pair)


@dataclass(frozen=True)
class Trouble:
    """Why there is no verdict on a change: the case is MISSING, or its rows are INVALID."""

    reason: Reason
    sentence: str
    missing: bool = False


def trouble(
    case: ComparedCase, base: Sequence[Run], head: Sequence[Run], allowed: frozenset[str] = frozenset()
) -> Trouble | None:
    """The first trouble of a case: those that cannot be allowed come before the others."""
    first = next(_troubles(case, base, head), None)
    if first or not case.base:
        return first
    unlike = [d for d in differences(case) if d.facet.reason not in allowed]
    return Trouble(unlike[0].facet.reason, "; ".join(d.sentence for d in unlike)) if unlike else None


def failures(run: Run) -> Iterator[tuple[ComparedCase, Trouble]]:
    """The cases of a run that failed or had a wrong answer."""
    for case in cases([], [run], paired=False):
        reason = trouble(case, [], [run])
        if reason and reason.reason in NEVER_ALLOWED:
            yield case, reason


def _troubles(case: ComparedCase, base: Sequence[Run], head: Sequence[Run]) -> Iterator[Trouble]:
    yield from _failures(case, base, head)
    yield from _wrong_answers(case, head)
    if case.base and not case.head:
        yield _missing(case, head)
    for side, rows in (("this run", case.head), ("the baseline", case.base)):
        for run, row in rows:
            yield from (Trouble(reason, f"{run.source}: {fault} {side}") for reason, fault in _faults(run, row))
    if case.incomplete_pair:
        yield Trouble(Reason.TORN, "one side of a pair of processes measured it, the other did not")


def _failures(case: ComparedCase, base: Sequence[Run], head: Sequence[Run]) -> Iterator[Trouble]:
    before = "; it fails in the baseline too" if any(_failure(run, case) for run in base) else ""
    missing = bool(case.base and not case.head)
    for run in head:
        failure = _failure(run, case)
        if failure:
            where = "in the baseline, not in this run" if missing else run.source
            measured = ": measured, and failed" if case.head else ""
            yield Trouble(Reason.FAILED, f"{where}{measured}: {failure.headline}{before}", missing)


def _failure(run: Run, case: ComparedCase) -> Unmeasured | None:
    ended = run.ended(case.names)
    return ended if ended and ended.outcome == FAILED else None


def _wrong_answers(case: ComparedCase, head: Sequence[Run]) -> Iterator[Trouble]:
    """Report wrong answers, also of a process without a partner."""
    before = ", and in the baseline" if any(row.is_wrong for row in case.before) else ""
    for run in head:
        if case.name in run.by_case and run.by_case[case.name].is_wrong:
            yield Trouble(Reason.WRONG_ANSWER, f"{run.source}: its answer is wrong in this run{before}")


def _missing(case: ComparedCase, head: Sequence[Run]) -> Trouble:
    ended = next(filter(None, (run.ended(case.names) for run in head)), None)
    reason = OF_A_TEST.get(ended.outcome, Reason.VANISHED) if ended else Reason.VANISHED
    why = ended.headline if ended else "it is not mentioned"
    return Trouble(reason, f"in the baseline, not in this run: {why}", missing=True)


def _faults(run: Run, row: Row) -> Iterator[tuple[Reason, str]]:
    if row.is_wrong:
        yield Reason.WRONG_BASELINE, "its answer is wrong in"
    if row.status == "invalid":
        yield Reason.BEYOND_ROOF, "faster than the device can be, in"
    if not is_measured(row.median):
        yield Reason.NO_TIME, f"its median is {row.median} in"
    elif row.stats.data and not math.isclose(row.median, statistics.median(row.stats.data), rel_tol=ROUNDED):
        yield Reason.NO_TIME, "its median is not of its samples in"
    if row.case in run.twice:
        yield Reason.TWICE, "two rows have this name in"


# What must be equal in all processes of both sides, and what may be told to differ.


@dataclass(frozen=True)
class Facet:
    """A property to compare. If it may differ, the threshold grows by `cost`, a share of the time."""

    reason: Reason
    of: Callable[[Run, Row], Any]
    means: str
    cost: float = 0.0
    none_is_unknown: bool = False  # as where FlashInfer does not say what it requires


def _completeness(row: Row) -> str | None:
    unmet = row.library.unmet
    return None if unmet is None else f"without {', '.join(sorted(unmet))}" if unmet else "complete"


FACETS = (
    Facet(Reason.MODEL, lambda run, row: run.model(row), "another model of GPU or CPU"),
    Facet(Reason.GPU, lambda _, row: row.identity.gpu_uuid, "another card; of one model they are 2-3 % apart", 0.03),
    Facet(Reason.DRIVER, lambda run, _: run.driver, "another driver"),
    Facet(
        Reason.INSTRUMENT,
        lambda _, row: row.provenance.instrument,
        "another instrument: events add 3 us to CUPTI's times",
    ),
    Facet(Reason.COLD_L2, lambda _, row: row.provenance.cold_l2, "another cold-L2 mode: up to 15 % for a short kernel"),
    Facet(Reason.CUDA_GRAPH, lambda _, row: row.provenance.cuda_graph, "CUDA graphs in one, launches in the other"),
    Facet(
        Reason.CONDITIONS,
        lambda _, row: ", ".join(row.conditions) or None,
        "another number of processes, another transport, or times that contain how late a process came",
    ),
    Facet(
        Reason.THREADS,
        lambda _, row: row.provenance.cpu_threads,
        "another number of torch's threads on the CPU",
        none_is_unknown=True,
    ),
    Facet(Reason.SEED, lambda _, row: row.setup.seed, "other inputs"),
    Facet(
        Reason.REQUIREMENTS,
        lambda _, row: _completeness(row),
        "FlashInfer without what it requires silently runs other kernels, or has none",
        none_is_unknown=True,
    ),
)
ALLOWABLE = {
    **{facet.reason.value: facet.means for facet in FACETS},
    "missing": "cases of the baseline that this run has not",
    "deselected": "those of them that -k, -m or --deselect left out",
    "invalid": "rows that cannot be judged, but never wrong answers",
}


class AllowError(FlashinferPerfError):
    """An unknown name in `--perf-gate-allow`."""


def allowed(text: str) -> frozenset[str]:
    """The names in the value of `--perf-gate-allow`."""
    names = text.replace(",", " ").split()
    for name in names:
        if name not in ALLOWABLE:
            raise AllowError(f"--perf-gate-allow: {unknown(name, ALLOWABLE)}")
    return frozenset(names)


def is_admitted(trouble: Trouble, names: frozenset[str]) -> bool:
    """Whether `--perf-gate-allow` names this trouble, or all of its kind."""
    kind = "missing" if trouble.missing else "invalid"
    return trouble.reason not in NEVER_ALLOWED and not names.isdisjoint({trouble.reason.value, kind})


@dataclass(frozen=True)
class Difference:
    """A facet that is not one and the same in all processes."""

    facet: Facet
    base: tuple[Any, ...]
    head: tuple[Any, ...]

    @property
    def sentence(self) -> str:
        base, head = (
            " and ".join("none" if one is None else str(one) for one in side) or "unknown"
            for side in (self.base, self.head)
        )
        return f"{self.facet.reason}: {base} in the baseline, {head} here ({self.facet.means})"


def differences(case: ComparedCase) -> list[Difference]:
    """Facets that differ between the sides, or within one of them."""
    all_facets = (Difference(facet, _values(facet, case.base), _values(facet, case.head)) for facet in FACETS)
    return [one for one in all_facets if len({*one.base, *one.head}) > 1]


def _values(facet: Facet, rows: Iterable[RunRow]) -> tuple[Any, ...]:
    values = dict.fromkeys(facet.of(run, row) for run, row in rows)
    return tuple(value for value in values if not (facet.none_is_unknown and value is None))


def changed_libraries(base: Iterable[Run], head: Iterable[Run]) -> list[str]:
    """Name libraries that changed, which is never refused: many comparisons are made for an upgrade."""
    before, after = _versions(base), _versions(head)
    return [
        f"{name} {before[name]} -> {after[name]}" for name in before if name in after and before[name] != after[name]
    ]


def _versions(runs: Iterable[Run]) -> dict[str, str]:
    by_name: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in run.libraries.items():
            if version is not None:
                by_name.setdefault(name, {})[str(version)] = None
    return {name: " and ".join(versions) for name, versions in by_name.items()}
