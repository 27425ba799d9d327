"""The section at the end of a run: per shape the backends side by side, in 80 columns of plain text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pytest_flashinfer_perf.report import vllm
from pytest_flashinfer_perf.report.layout import WIDTH, duration

Row = Mapping[str, Any]

HEADINGS = f"  {'':<24}{'median':>10}{'spread':>7}{'TFLOP/s':>9}{'TB/s':>7}{'%roof':>7} bound"
COLD = {"rotate": "cold L2 by rotation", "flush": "cold L2 by flush", "none": "hot L2"}
BOUND = {"memory": "mem", "compute": "comp", None: ""}
CURE = "raise --perf-iters, give the device to this run alone, or lock its clocks"


def lines(
    rows: Sequence[Row], skips: Sequence[str], versions: Mapping[str, Any], looked_at: Sequence[str] = ()
) -> Iterator[str]:
    """`looked_at` is what was seen of answers that were checked and not timed."""
    if rows:
        yield from _wrapped(_software(versions))
    for provenance, of_one in _grouped(rows, _provenance):
        yield ""
        yield from _wrapped(provenance)
        yield HEADINGS
        for shape, side_by_side in _grouped(of_one, _shape):
            yield shape
            yield from _backends(side_by_side)
    yield from vllm.lines(rows)
    yield from _looked_at(looked_at)
    yield from _skipped(skips)
    yield from _warnings(rows)


def _software(versions: Mapping[str, Any]) -> str:
    known = [f"{name} {version}" for name, version in versions.items() if version is not None and name != "gpu"]
    return ", ".join(known)


def _provenance(row: Row) -> str:
    routine = row.get("routine") or "own kernels"
    how = [row["instrument"], COLD[row["cold_l2"]], *(["CUDA graph"] if row["cuda_graph"] else [])]
    roof = f", roof {row['peaks']}" if row["peaks"] else ", roof not measured"
    fallback = " (fallback)" if row["fallback"] else ""
    return f"{routine} on {row['device']} {row['device_name']}: {', '.join(how)}{fallback}{roof}"


def _shape(row: Row) -> str:
    return str(row.get("shape") or row["case"])


def _backends(rows: Iterable[Row]) -> Iterator[str]:
    ordered = sorted(rows, key=lambda r: r["median"])
    sound = [r for r in ordered if r["status"] not in ("invalid", "wrong")]
    for row in ordered:
        best = len(ordered) > 1 and bool(sound) and row is sound[0]
        yield _line(row, "*" if best else " ")


def _line(row: Row, mark: str) -> str:
    status = {"ok": "", "noisy": "noisy"}.get(row["status"], row["status"].upper())
    numbers = f"{duration(row['median']):>10}{100 * row['spread']:>6.1f}%{_rate(row['tflops']):>9}"
    numbers += f"{_rate(row['tb_per_sec']):>7}{_rate(row['sol_pct']):>7}"
    return f"{mark} {_name(row):<24}{numbers} {BOUND[row['bound']]:<4} {status}".rstrip()


def _name(row: Row) -> str:
    backend, resolved = row.get("backend", ""), row.get("resolved_backend")
    return backend if resolved in (None, backend, "sdpa") else f"{backend} ({resolved})"


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    digits = next((d for d, least in enumerate((100, 10, 0.1, 0.01)) if value >= least), 4)
    return f"{value:.{digits}f}"


def _looked_at(answers: Sequence[str]) -> Iterator[str]:
    if answers:
        yield ""
        seen = ", ".join(f"{count} {name}" for name, count in Counter(answers).most_common())
        yield from _wrapped(f"{len(answers)} answers looked at, none timed (--perf-refcheck=only): {seen}")


def _skipped(reasons: Sequence[str]) -> Iterator[str]:
    if reasons:
        yield ""
        yield f"{len(reasons)} cases skipped"
    for reason, count in Counter(reasons).most_common():
        yield from textwrap.wrap(f"{count:>5}  {reason}", WIDTH, subsequent_indent=" " * 7)


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    for sentence in dict.fromkeys(r["fallback"] for r in rows if r["fallback"]):
        yield from _wrapped(f"WARNING: {sentence}")
    noisy = sum(r["status"] == "noisy" for r in rows)
    if noisy:
        yield from _wrapped(f"{noisy} noisy: the spread stayed above 5 %; {CURE}")
    wrong = sum(r["status"] == "wrong" for r in rows)
    if wrong:
        yield from _wrapped(
            f"{wrong} WRONG: the answer is not the reference's, which --perf-allow-output-mismatch allows"
        )
    unchecked = sum(r.get("refcheck") == "off" for r in rows)
    if unchecked:
        yield from _wrapped(f"{unchecked} not checked: --perf-refcheck=off")
    invalid = sum(r["status"] == "invalid" for r in rows)
    if invalid:
        yield from _wrapped(f"{invalid} INVALID: faster than this device can be; the time or the cost is wrong")


def _wrapped(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, WIDTH, subsequent_indent="  ")


def _grouped(rows: Iterable[Row], key: Any) -> Iterator[tuple[str, list[Row]]]:
    first = {name: i for i, name in enumerate(dict.fromkeys(map(key, rows)))}
    for name, group in groupby(sorted(rows, key=lambda r: first[key(r)]), key):
        yield name, list(group)
