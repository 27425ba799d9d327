"""The table of searches in the terminal: examples checked by each, and their rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_flashinfer_perf.runs.formatting import wrapped

Report = Mapping[str, Any]

HEADINGS = f"{'':<28}{'checked':>9}{'sampled':>8}{'refused':>8}{'skipped':>8}{'quar.':>6}{'found':>6}{'/min':>7}"
REASONS = {
    "refused": "refused by the library, although the capability check passed",
    "quarantined": "never launched, by the settings file",
}


def lines(reports: Sequence[Report]) -> Iterator[str]:
    for routine in dict.fromkeys(report["routine"] for report in reports):
        of_one = [report for report in reports if report["routine"] == routine]
        yield ""
        yield f"{routine}: shapes searched"
        yield HEADINGS
        yield from map(_line, of_one)
    for name, heading in REASONS.items():
        yield from _counted(heading, [report[name] for report in reports])
    found = [path for report in reports for path in report["findings"].values()]
    yield from (f"pytest {path}" for path in found)


def _line(report: Report) -> str:
    wanted = f"{report['checked']}/{report['wanted']}"
    counts = [sum(report[name].values()) for name in ("refused", "skipped", "quarantined")]
    numbers = f"{wanted:>9}{report['sampled']:>8}{counts[0]:>8}{counts[1]:>8}{counts[2]:>6}{len(report['findings']):>6}"
    stopped = " out of time" if report["stopped"] else ""
    return f"  {report['backend']:<26}{numbers}{report['examples_per_minute']:>7.0f}{stopped}"


def _counted(heading: str, of_each: Sequence[Mapping[str, int]]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for counts in of_each:
        total.update(counts)
    if total:
        yield f"{sum(total.values())} {heading}"
    for reason, count in total.most_common():
        yield from wrapped(f"{count:>5}  {reason}", 7)
