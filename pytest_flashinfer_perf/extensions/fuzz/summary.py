"""The table of searches in the terminal: the examples that each has checked, and their rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_flashinfer_perf.api import formatting

Report = Mapping[str, Any]

HEADINGS = f"{'':<28}{'checked':>9}{'refused':>8}{'skipped':>8}{'quar.':>6}{'found':>6}"
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
        for report in of_one:
            examples, findings = f"{report['checked']}/{report['wanted']}", len(report["findings"])
            refused, skipped, left = (sum(report[name].values()) for name in ("refused", "skipped", "quarantined"))
            numbers = f"{examples:>9}{refused:>8}{skipped:>8}{left:>6}{findings:>6}"
            stopped = " out of time" if report["stopped"] else ""
            yield f"  {report['backend']:<26}{numbers}{stopped}"
    for name, heading in REASONS.items():
        total = sum((Counter(report[name]) for report in reports), Counter[str]())
        if total:
            yield f"{sum(total.values())} {heading}"
        yield from formatting.by_count(total)
    yield from (f"pytest {path}" for report in reports for path in report["findings"].values())
