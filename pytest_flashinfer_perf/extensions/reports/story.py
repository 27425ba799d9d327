"""What a report tells about runs: the newest row of each case, failures, where the numbers are from.

Markdown and page show the same: here is what, and with them how. Which backends are the fastest is in `backends.py`;
what several runs say of each other is told by `compare` and `watch`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_flashinfer_perf.api import Row, Run, formatting, run_file, scatter

OWN = "own kernels"
SOFTWARE = ("gpu", "driver", "cuda", "cudnn", "torch", "flashinfer", "cupti", "python_version")
MEANINGS = {
    "failed": "failed: wrong answers or errors",
    "wrong": "measured with a wrong answer, as was allowed",
    "invalid": "invalid: faster than the device can be",
    "noisy": "noisy: their times are not known well",
    "xfailed": "failed as expected",
    "skipped": "skipped, each with its reason",
}


@dataclass(frozen=True)
class CaseOutcome:
    """The newest entry of a case on a device, measured or not."""

    place: str
    entry: Row | run_file.Unmeasured
    run: Run

    @property
    def status(self) -> str:
        """The row's own; without a row `skipped`, `failed` or `xfailed`."""
        return str(self.entry.outcome if isinstance(self.entry, run_file.Unmeasured) else self.entry.status)

    @property
    def row(self) -> Row | None:
        return None if isinstance(self.entry, run_file.Unmeasured) else self.entry

    @property
    def measured(self) -> bool:
        return self.row is not None

    @property
    def reason(self) -> str:
        """Why there is no row, or why it does not count."""
        return self.entry.reason if isinstance(self.entry, run_file.Unmeasured) else self.entry.check.refcheck or ""

    @property
    def case(self) -> str:
        return self.entry.identity.case

    @property
    def routine(self) -> str:
        return self.entry.identity.routine or OWN

    @property
    def shape(self) -> str:
        return self.entry.identity.shape or self.case

    @property
    def backend(self) -> str:
        return self.entry.identity.backend or ""

    @property
    def device(self) -> str:
        return str(self.entry.identity.device_name or self.run.machine.get("gpu") or self.place)


def outcomes(runs: Sequence[Run]) -> list[CaseOutcome]:
    """The newest of each case, in the order of first appearance; `runs` are oldest first."""
    newest = {
        (place, case, nth): CaseOutcome(place, entry, run) for run in runs for place, case, nth, entry in _numbered(run)
    }
    return list(newest.values())


def _numbered(run: Run) -> Iterator[tuple[str, str, int, Row | run_file.Unmeasured]]:
    """A case that a run has twice is two: none of them is left out."""
    times: Counter[tuple[str, str]] = Counter()
    entries: list[Row | run_file.Unmeasured] = [*run.ours, *run.unmeasured]
    # A test that was skipped before it had a device belongs to the run's, if that has a single one.
    places = {row.identity.place for row in run.ours}
    single = places.pop() if len(places) == 1 else ""
    for entry in entries:
        at = (entry.identity.place or single, entry.case)
        times[at] += 1
        yield (*at, times[at], entry)


@dataclass(frozen=True)
class Summary:
    """The summary. `failed` has names, and why."""

    measured: int
    statuses: Counter[str]
    failed: Sequence[tuple[str, str]]
    sentences: tuple[str, ...]


def answer(outcomes: Sequence[CaseOutcome]) -> Summary:
    statuses = Counter(one.status for one in outcomes)
    measured = sum(one.measured for one in outcomes)
    failed = [(one.case, one.reason) for one in outcomes if one.status in ("failed", "wrong")]
    counted_by = (f"{statuses[status]} {meaning}." for status, meaning in MEANINGS.items() if statuses[status])
    return Summary(measured, statuses, failed, (_measured(measured, outcomes), *counted_by))


def _measured(measured: int, outcomes: Sequence[CaseOutcome]) -> str:
    if not measured:
        return "Nothing was measured."
    routines = len({one.routine for one in outcomes if one.measured})
    where = " and ".join(devices(outcomes).values())
    return f"{formatting.counted(measured, 'case')} of {formatting.counted(routines, 'routine')} measured on {where}."


def devices(outcomes: Iterable[CaseOutcome]) -> dict[str, str]:
    """A name for each place that something was measured at; the end of its UUID where two have one name."""
    names = {outcome.place: outcome.device for outcome in outcomes if outcome.measured}
    twice = {name for name, count in Counter(names.values()).items() if count > 1}
    return {place: f"{name} ({place[-6:]})" if name in twice else name for place, name in names.items()}


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Where the numbers of each run come from: a line for each fact that any of them has."""
    facts = []
    for run in runs:
        commit = _commit(run)
        ways = sorted({f"{row.provenance.instrument}, {formatting.cold_l2(row)}" for row in run.ours})
        facts_of_run = {
            "when": f"{run.when:%Y-%m-%d %H:%M:%S}",
            "commit": commit and f"{commit}{' and uncommitted changes' if run.commit.dirty else ''}",
            **{name: run.machine.get(name) for name in SOFTWARE},
            "timed by": "; ".join(ways),
            "cases": len(run.ours),
        }
        facts.append({name: str(value) for name, value in facts_of_run.items() if value not in (None, "")})
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    return {name: [of_run.get(name, "") for of_run in facts] for name in names}


def _commit(run: Run) -> str | None:
    """Outside a repository pytest-benchmark writes a word instead of an id."""
    hexadecimal = re.fullmatch(r"[0-9a-f]{10,}", str(run.commit.id))
    return hexadecimal and hexadecimal[0][:10]


LEFT = {"xfailed": "Failed as expected", "skipped": "Skipped"}


def left(outcomes: Sequence[CaseOutcome]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Why cases were not measured, though nothing went wrong: how many, and the first line of the reason."""
    for status, title in LEFT.items():
        reasons = Counter(one.reason.partition("\n")[0] for one in outcomes if one.status == status)
        if reasons:
            yield title, [(count, reason) for reason, count in reasons.most_common()]


# The runs that a report shows, read from their files.


def read(paths: Iterable[Path]) -> list[Run]:
    """Oldest first, whatever their order."""
    runs = sorted((run_file.read(path) for path in paths), key=lambda run: run.when)
    for source, row in ((run.source, row) for run in runs for row in run.ours):
        is_valid = scatter.is_measured(row.stats.median) and scatter.is_measured(row.stats.mean)
        if not (is_valid and all(map(math.isfinite, row.stats.data))):
            raise run_file.RunError(f"{source}: {row.fullname} has an invalid time: measure it again")
    return runs
