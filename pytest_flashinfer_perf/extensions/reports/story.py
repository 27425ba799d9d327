"""What a report tells about runs: the newest row of each case, failures, changes, where the numbers are from.

Terminal, Markdown and page show the same: here is what, and with them how. The gate compares the newest run with the
earlier ones (`of`). Which backends are the fastest is in `backends.py`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_flashinfer_perf.api import Row, Run, formatting, judge, run_file, scatter, words
from pytest_flashinfer_perf.extensions.compare import judging

OWN = "own kernels"
SOFTWARE = ("gpu", "driver", "cuda", "cudnn", "torch", "flashinfer", "cupti", "python_version")
WORSE = ("SLOWER", "MISSING", "INVALID", "AMBIGUOUS")
NAMED = 20  # cases of which there is one thing to say
MEANINGS = {
    "failed": "failed: wrong answers or errors",
    "wrong": "measured with a wrong answer, as was allowed",
    "invalid": "invalid: faster than the device can be",
    "noisy": "noisy: their times are not known well",
    "xfailed": "failed as expected",
    "skipped": "skipped, each with its reason",
}


@dataclass(frozen=True)
class CaseHistory:
    """The newest entry of a case on a device, measured or not, and all its rows, oldest first."""

    place: str
    entry: Row | run_file.Unmeasured
    run: Run
    history: tuple[tuple[Run, Row], ...]

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
    def change(self) -> float:
        """From the oldest time to the newest, as a share of the oldest."""
        return self.history[-1][1].median / self.history[0][1].median - 1

    @property
    def device(self) -> str:
        return str(self.entry.identity.device_name or self.run.machine.get("gpu") or self.place)


def outcomes(runs: Sequence[Run]) -> list[CaseHistory]:
    """The history of each case, in the order of first appearance; `runs` are oldest first."""
    seen: dict[tuple[str, str, int], list[tuple[Run, Row | run_file.Unmeasured]]] = {}
    before: dict[str, str] = {}
    for run in runs:
        for place, case, nth, entry in _numbered(run, before):
            seen.setdefault((place, case, nth), []).append((run, entry))
            before[case] = place
    found = []
    for (place, _, _), entries in seen.items():
        newest_run, newest = entries[-1]
        measured = tuple((run, entry) for run, entry in entries if isinstance(entry, Row))
        found.append(CaseHistory(place, newest, newest_run, measured))
    return found


def _numbered(run: Run, before: Mapping[str, str]) -> Iterator[tuple[str, str, int, Row | run_file.Unmeasured]]:
    """A case that a run has twice is two: none of them is left out."""
    times: Counter[tuple[str, str]] = Counter()
    entries: list[Row | run_file.Unmeasured] = [*run.ours, *run.unmeasured]
    # A test that was skipped before it had a device belongs to the run's, if that has a single one.
    known = {row.identity.place for row in run.ours}
    single = known.pop() if len(known) == 1 else ""
    for entry in entries:
        at = (entry.identity.place or single or before.get(entry.case, ""), entry.case)
        times[at] += 1
        yield (*at, times[at], entry)


@dataclass(frozen=True)
class Summary:
    """The summary. `troubles` are what failed, what got slower and what is not decided: names, and why."""

    measured: int
    statuses: Counter[str]
    troubles: Mapping[str, Sequence[tuple[str, str]]]
    sentences: tuple[str, ...]


def answer(runs: Sequence[Run], found: Sequence[CaseHistory], judged: Mapping[str, ShownVerdict]) -> Summary:
    statuses = counts(found)
    measured = sum(one.measured for one in found)
    failed = [(one.case, one.reason) for one in found if one.status in ("failed", "wrong")]
    slower = [(one.case, judged[one.case].reason) for one in found if one.case in judged and judged[one.case].is_slower]
    listed = dict(failed)
    left = [(case, one) for case, one in judged.items() if one.verdict in WORSE[1:] and case not in listed]
    by_reason = formatting.grouped(left, lambda pair: f"{pair[1].verdict}: {pair[1].reason}")
    undecided = [(formatting.some([case for case, _ in alike], NAMED), reason) for reason, alike in by_reason]
    troubles = {"Failed": failed, "Slower": slower, "Not decided": undecided}
    counted_by = (f"{statuses[status]} {meaning}." for status, meaning in MEANINGS.items() if statuses[status])
    sentences = (_measured(measured, found), *counted_by, _compared(runs, judged))
    return Summary(measured, statuses, troubles, sentences)


def _measured(measured: int, found: Sequence[CaseHistory]) -> str:
    if not measured:
        return "Nothing was measured."
    routines = len({one.routine for one in found if one.measured})
    where = " and ".join(devices(found).values())
    return f"{formatting.counted(measured, 'case')} of {formatting.counted(routines, 'routine')} measured on {where}."


def _compared(runs: Sequence[Run], judged: Mapping[str, ShownVerdict]) -> str:
    if len(runs) == 1:
        return "One run: nothing to compare it with."
    if not judged:
        return f"{len(runs)} runs, not compared."
    verdicts = Counter(one.verdict for one in judged.values())
    ordered = sorted(verdicts.items(), key=lambda pair: (pair[0] not in WORSE, pair[0]))
    said = ", ".join(f"{n} {verdict}" for verdict, n in ordered)
    return f"The newest against {formatting.counted(len(runs) - 1, 'run')}: {said}."


def counts(found: Iterable[CaseHistory]) -> Counter[str]:
    return Counter(outcome.status for outcome in found)


def devices(found: Iterable[CaseHistory]) -> dict[str, str]:
    """A name for each place that something was measured at; the end of its UUID where two have one name."""
    names = {outcome.place: outcome.device for outcome in found if outcome.measured}
    twice = {name for name, count in Counter(names.values()).items() if count > 1}
    return {place: f"{name} ({place[-6:]})" if name in twice else name for place, name in names.items()}


def provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Where the numbers of each run come from: a line for each fact that any of them has."""
    facts = []
    for run in runs:
        commit = _commit(run)
        ways = sorted({f"{row.provenance.instrument}, {formatting.cold_l2(row)}" for row in run.ours})
        known = {
            "when": f"{run.when:%Y-%m-%d %H:%M:%S}",
            "commit": commit and f"{commit}{' and uncommitted changes' if run.commit.dirty else ''}",
            **{name: run.machine.get(name) for name in SOFTWARE},
            "timed by": "; ".join(ways),
            "cases": len(run.ours),
        }
        facts.append({name: str(value) for name, value in known.items() if value not in (None, "")})
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    return {name: [of_run.get(name, "") for of_run in facts] for name in names}


def _commit(run: Run) -> str | None:
    """Outside a repository pytest-benchmark writes a word instead of an id."""
    known = re.fullmatch(r"[0-9a-f]{10,}", str(run.commit.id))
    return known and known[0][:10]


def labels(runs: Sequence[Run]) -> list[str]:
    """What stands below each run on an axis: its commit, if it has one, and when it was."""
    return [f"{_commit(run) or run.name}{'+' if run.commit.dirty else ''}\n{run.when:%Y-%m-%d %H:%M}" for run in runs]


@dataclass(frozen=True)
class Support:
    """The outcomes of the cases of one backend of a routine."""

    routine: str
    backend: str
    measured: int
    statuses: Counter[str]
    reasons: Counter[str]


def support(found: Iterable[CaseHistory]) -> Iterator[Support]:
    for (routine, backend), cases in formatting.grouped(found, lambda one: (one.routine, one.backend)):
        why_not = reasons(one for one in cases if not one.measured)
        yield Support(routine, backend, sum(one.measured for one in cases), counts(cases), why_not)


def reasons(unmeasured: Iterable[CaseHistory]) -> Counter[str]:
    return Counter(one.reason.partition("\n")[0] for one in unmeasured)


# The runs that a report shows, read from their files.


def read(paths: Iterable[Path]) -> list[Run]:
    """Oldest first, whatever their order."""
    runs = sorted((run_file.read(path) for path in paths), key=lambda run: run.when)
    for source, row in ((run.source, row) for run in runs for row in run.ours):
        is_valid = scatter.is_measured(row.stats.median) and scatter.is_measured(row.stats.mean)
        if not (is_valid and all(map(math.isfinite, row.stats.data))):
            raise run_file.RunError(f"{source}: {row.fullname} has an invalid time: measure it again")
    return runs


# Compare the newest run with all earlier ones, by the gate.


@dataclass(frozen=True)
class ShownVerdict:
    verdict: str
    reason: str

    @property
    def is_slower(self) -> bool:
        return self.verdict == "SLOWER"


def of(runs: Sequence[Run]) -> dict[str, ShownVerdict]:
    """Verdicts by case, as `compare` would give them with this folder's thresholds; empty for a single run."""
    if len(runs) < 2:
        return {}
    run_file.verify_once(runs)
    *base, head = runs
    held_to = judging.in_settings()
    found = {}
    for one in judge(base, [head], held_to).cases:  # with the figures, where there was something to compare
        figures = f"{words.times(one)}, {words.changes(one)}: " if one.compared else ""
        found[one.name] = ShownVerdict(one.verdict.value, f"{figures}{one.sentence}")
    return found
