"""The section at the end of a run: per shape the backends side by side, in 80 columns of plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_flashinfer_perf.report import host, vllm
from pytest_flashinfer_perf.runs import formatting
from pytest_flashinfer_perf.runs.formatting import (
    counted,
    duration,
    grouped,
    named,
    provenance,
    rate,
    software,
    wrapped,
)
from pytest_flashinfer_perf.runs.scatter import noise
from pytest_flashinfer_perf.timing.stopping import FEWEST, OUT_OF_TIME, WALL_FACTOR

Row = Mapping[str, Any]

HEADINGS = f"  {'':<24}{'median':>10}{'spread':>7}{'TFLOP/s':>9}{'TB/s':>7}{'%roof':>7} bound"
BOUND = {"memory": "mem", "memory?": "mem?", "compute": "comp", None: ""}
GRAPH = "--perf-cuda-graph=on replays them without it"
CURE = "raise --perf-iters, give the device to this run alone, or lock its clocks"
EARLY = f"their wall time was up, {WALL_FACTOR} times --benchmark-max-time"


def lines(
    rows: Sequence[Row],
    skips: Sequence[str],
    versions: Mapping[str, Any],
    looked_at: Sequence[str] = (),
    xfailed: Sequence[str] = (),
) -> Iterator[str]:
    """`looked_at` is what was seen of answers that were checked and not timed."""
    if rows:
        yield from wrapped(software(versions))
    for title, of_one in grouped(rows, provenance):
        yield ""
        yield from wrapped(title)
        yield HEADINGS
        for shape, side_by_side in grouped(of_one, _shape):
            yield shape
            yield from _backends(side_by_side)
    yield from vllm.lines(rows)
    yield from _looked_at(looked_at)
    yield from left("skipped", skips)
    yield from left("failed as expected", xfailed)
    yield from _warnings(rows)


def _shape(row: Row) -> str:
    return str(row.get("shape") or row["case"])


def _backends(rows: Iterable[Row]) -> Iterator[str]:
    from pytest_flashinfer_perf.report import ties

    ordered = sorted(rows, key=lambda r: r["median"])
    best = ties.fastest(ordered)
    for row in ordered:
        yield _line(row, "*" if any(row is one for one in best) else " ")


def _line(row: Row, mark: str) -> str:
    status = {"ok": "", "noisy": "noisy"}.get(row["status"], row["status"].upper())
    calls = counted(len(row["samples"]), "call") if _stopped_early(row) else ""
    numbers = (
        f"{duration(row['median']):>10}{formatting.spread(row['spread']).replace(' ', ''):>7}{rate(row['tflops']):>9}"
    )
    numbers += f"{rate(row['tb_per_sec']):>7}{rate(row['sol_pct']):>7}"
    return f"{mark} {named(row):<24}{numbers} {_bound(row):<4} {status or calls}".rstrip()


def _stopped_early(row: Row) -> bool:
    return row.get("stopped") == OUT_OF_TIME and len(row["samples"]) < FEWEST


def _range(counts: Sequence[int]) -> str:
    fewest, most = min(counts), max(counts)
    return counted(most, "call") if fewest == most else f"{fewest} to {most} calls"


def _bound(row: Row) -> str:
    return "host" if row.get("host_bound") else BOUND[row["bound"]]


def _looked_at(answers: Sequence[str]) -> Iterator[str]:
    if answers:
        yield ""
        seen = ", ".join(f"{count} {name}" for name, count in Counter(answers).most_common())
        yield from wrapped(f"{counted(len(answers), 'answer')} looked at, none timed (--perf-refcheck=only): {seen}")


def left(outcome: str, reasons: Sequence[str], what: str = "case") -> Iterator[str]:
    if reasons:
        yield ""
        yield f"{counted(len(reasons), what)} {outcome}"
    for reason, count in Counter(reasons).most_common():
        yield from wrapped(f"{count:>5}  {reason}", 7)


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    for sentence in dict.fromkeys(r["fallback"] for r in rows if r["fallback"]):
        yield from wrapped(f"WARNING: {sentence}")
    for how, noisy in Counter(noise(r["instrument"]) for r in rows if r["status"] == "noisy").items():
        yield from wrapped(f"{noisy} noisy: {how}; {CURE}")
    early = [len(r["samples"]) for r in rows if _stopped_early(r)]
    if early:
        yield from wrapped(f"{counted(len(early), 'case')} stopped early, after {_range(early)}: {EARLY}")
    waiting = sum(bool(r.get("host_bound")) for r in rows)
    if waiting:
        yield from wrapped(f"{waiting} bound by the host: kernels wait for their launches; {GRAPH}")
    yield from wrapped(host.waiting(rows))
    wrong = sum(r["status"] == "wrong" for r in rows)
    if wrong:
        yield from wrapped(
            f"{wrong} WRONG: the answer is not the reference's, which --perf-allow-output-mismatch allows"
        )
    unchecked = sum(r.get("refcheck") == "off" for r in rows)
    if unchecked:
        yield from wrapped(f"{unchecked} not checked: --perf-refcheck=off")
    unknown = sorted({r["flops_dtype"] or "a type not stated" for r in rows if r["bound"] == "memory?"})
    if unknown:
        yield from wrapped(f"mem?: no compute roof is known for {', '.join(unknown)}; %roof is of the memory's roof")
    invalid = sum(r["status"] == "invalid" for r in rows)
    if invalid:
        yield from wrapped(f"{invalid} INVALID: faster than this device can be; the time or the cost is wrong")
