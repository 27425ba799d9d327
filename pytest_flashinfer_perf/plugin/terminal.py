"""The table at the end of a run: backends side by side for each shape, in the columns of the terminal."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from pytest_flashinfer_perf.engine.stopping import FEWEST, OUT_OF_TIME, WALL_FACTOR
from pytest_flashinfer_perf.rows import formatting
from pytest_flashinfer_perf.rows.formatting import (
    by_count,
    counted,
    duration,
    grouped,
    named,
    provenance,
    rate,
    some,
    wrapped,
)
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.scatter import noise

HEADINGS = f"{'median':>10}{'spread':>7}{'TFLOP/s':>9}{'TB/s':>7}{'%roof':>7} bound"
BESIDE = 56  # columns of a line that are not a name's: its mark, its figures and its status
SHOWN = {"ok": "", "noisy": "noisy"}
BOUND = {"memory": "mem", "memory?": "mem?", "compute": "comp", "link": "link", None: ""}
GRAPH = "--perf-cuda-graph=on replays them without it"
CURE = "raise --perf-iters, give the device to this run alone, or lock its clocks"
CURE_OF_LOAD = "measure when nothing else runs"
NUMBERS = re.compile(r"(?<![\w.-])\d[\d.]*\+?(?: or \d[\d.]*\+?)*(?![\w-])")  # of a sentence, and not of a name in it
EARLY = f"their wall time was up, {WALL_FACTOR} times --benchmark-max-time"
COUNTED: tuple[tuple[Callable[[Row], object], str], ...] = (
    (lambda row: row.provenance.host_bound, f"bound by the host: kernels wait for their launches; {GRAPH}"),
    (
        lambda row: row.status == "wrong",
        "WRONG: the answer is not the reference's, which --perf-allow-output-mismatch allows",
    ),
    (lambda row: row.check.refcheck == "off", "not checked: --perf-refcheck=off"),
    (
        lambda row: _has_no_reference(row) and not row.facts.get("no_reference"),
        "not checked: no reference was given, as perf.time takes it",
    ),
    (
        lambda row: _has_no_reference(row) and row.facts.get("no_reference"),
        "not checked: no reference, for the reason in the row's no_reference",
    ),
    (lambda row: row.status == "invalid", "INVALID: faster than this device can be; the time or the cost is wrong"),
)


def lines(
    rows: Sequence[Row],
    skips: Sequence[str],
    checked: Sequence[str] = (),
    xfailed: Sequence[str] = (),
    to_show: Sequence[Row] | None = None,
) -> Iterator[str]:
    """`checked` are the results of answers that were compared and not timed; `to_show` are rows without a table yet."""
    yield from tables(rows if to_show is None else to_show)
    if checked:
        yield ""
        results = ", ".join(f"{count} {name}" for name, count in Counter(checked).most_common())
        yield from wrapped(f"{counted(len(checked), 'answer')} checked, none timed (--perf-refcheck=only): {results}")
    yield from left("skipped", skips)
    yield from left("failed as expected", xfailed)
    yield from _warnings(rows)


def tables(rows: Sequence[Row]) -> Iterator[str]:
    for title, of_one in grouped(rows, provenance):
        yield ""
        yield from wrapped(title)
        yield f"{'':<{_room() + 2}}{HEADINGS}"
        for shape, side_by_side in grouped(of_one, lambda row: row.shape):
            yield from _backends(shape, side_by_side)


def _has_no_reference(row: Row) -> bool:
    return row.check.refcheck == "not checked"


def _room() -> int:
    """The columns that a name has, 24 of 80."""
    return max(formatting.width(), formatting.WIDTH) - BESIDE


def _backends(shape: str, rows: Sequence[Row]) -> Iterator[str]:
    """A kernel of one's own, which has no backends to stand below its name, stands beside it where there is room."""
    from pytest_flashinfer_perf.gate.effects import fastest

    if len(shape) <= _room() and not any(map(named, rows)):
        yield from (_line(row, " ", shape) for row in rows)
        return
    yield shape
    ordered = sorted(rows, key=lambda row: row.median)
    best = fastest(ordered)
    for row in ordered:
        yield _line(row, "*" if any(row is one for one in best) else " ", named(row))


def _line(row: Row, mark: str, name: str) -> str:
    status = SHOWN.get(str(row.status), str(row.status).upper())
    calls = counted(row.stats.rounds, "call") if _stopped_early(row) else ""
    work, spread = row.throughput, formatting.spread(row.spread).replace(" ", "")
    rates = f"{rate(work.tflops):>9}{rate(work.tb_per_sec):>7}{rate(work.sol_pct):>7}"
    bound = "host" if row.provenance.host_bound else BOUND[work.bound]
    time = f"{duration(row.median):>10}{spread:>7}"
    return f"{mark} {name:<{_room()}}{time}{rates} {bound:<4} {status or calls}".rstrip()


def _stopped_early(row: Row) -> bool:
    return row.provenance.stopped == OUT_OF_TIME and row.stats.rounds < FEWEST


def left(outcome: str, reasons: Sequence[str], what: str = "case") -> Iterator[str]:
    if reasons:
        yield ""
        yield f"{counted(len(reasons), what)} {outcome}"
    yield from by_count(folded(reasons))


def folded(reasons: Sequence[str]) -> Counter[str]:
    """Count reasons as one that differ in numbers, or in the backend that they begin with."""
    alike: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for reason in reasons:
        alike[NUMBERS.sub("", reason.partition(" ")[2] or reason)][reason] += 1
    return Counter({_as_one(list(counts)): counts.total() for counts in alike.values()})


def _as_one(reasons: Sequence[str]) -> str:
    parts = [NUMBERS.split(reason) for reason in reasons]
    numbers = [NUMBERS.findall(reason) for reason in reasons]
    kept = list(map(_as_range, zip(*numbers, strict=True)))
    names = list(dict.fromkeys(reason.partition(" ")[0] for reason in reasons))
    said = "".join(text for pair in zip_longest(parts[0], kept, fillvalue="") for text in pair)
    return said if len(names) == 1 else f"{said.partition(' ')[2]} ({some(names)})"


def _as_range(numbers: Sequence[str]) -> str:
    """The number, or the least and the largest of several; of lists of numbers none."""
    if len(set(numbers)) == 1:
        return numbers[0]
    plain = all(number.replace(".", "", 1).isdigit() for number in numbers)
    return f"{min(numbers, key=float)} to {max(numbers, key=float)}" if plain else "..."


def _cure(row: Row) -> str:
    if row.execution.contention is not None and row.execution.contention.is_loaded:
        return CURE_OF_LOAD
    return CURE if row.identity.gpu_uuid else f"raise --perf-iters, or {CURE_OF_LOAD}"


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    for sentence in dict.fromkeys(row.provenance.fallback for row in rows if row.provenance.fallback):
        yield from wrapped(f"WARNING: {sentence}")
    noisy = [row for row in rows if row.status == "noisy"]
    cures = [noise(row.provenance.instrument, row.execution.contention) + f"; {_cure(row)}" for row in noisy]
    for how, count in folded(cures).items():
        yield from wrapped(f"{count} noisy: {how}")
    early = [row.stats.rounds for row in rows if _stopped_early(row)]
    if early:
        few = "" if min(early) == max(early) else f"{min(early)} to "
        calls = f"{few}{counted(max(early), 'call')}"
        yield from wrapped(f"{counted(len(early), 'case')} stopped early, after {calls}: {EARLY}")
    for concerns, sentence in COUNTED:
        count = sum(bool(concerns(row)) for row in rows)
        if count:
            yield from wrapped(f"{count} {sentence}")
    works = [row.throughput for row in rows]
    unknown = sorted({work.flops_dtype or "a type not stated" for work in works if work.bound == "memory?"})
    if unknown:
        yield from wrapped(f"mem?: no compute roof is known for {', '.join(unknown)}; %roof is of the memory's roof")
