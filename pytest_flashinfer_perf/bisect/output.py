"""Text output of a search: a line for each step and finding, and the result of each case."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_flashinfer_perf.bisect.search import GIT_WORDS, CaseFinding, CaseSearch, History, PointVerdict, Question
from pytest_flashinfer_perf.files import write_json, write_whole
from pytest_flashinfer_perf.gate import document, markdown, words
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Judgement
from pytest_flashinfer_perf.rows.formatting import indented


def step(question: Question, found: Mapping[str, CaseFinding], history: History, seconds: float) -> Iterator[str]:
    beside = f" beside {history.title(question.base)}" if question.stage == "verify" else ""
    yield f"{question.number:2} {question.stage}: {history.title(question.head)}{beside} ({seconds:.0f} s)"
    for case, finding in found.items():
        yield f"     {case}"
        answer = (GIT_WORDS if question.stage == "step" else ENDS)[finding.answer]
        yield from indented(f"{answer}: {finding.sentence}", 7)


ENDS = {PointVerdict.CHANGED: "changed", PointVerdict.UNCHANGED: "not changed", PointVerdict.SKIP: "unclear"}


def results(trails: Iterable[CaseSearch], history: History, wanted: str) -> Iterator[str]:
    for trail in trails:
        yield ""
        yield trail.case
        yield from (line for sentence in _result(trail, history, wanted) for line in indented(sentence, 2))


def _result(trail: CaseSearch, history: History, wanted: str) -> Iterator[str]:
    if not trail.searched:
        yield f"not searched, it is unclear whether the ends differ: {trail.ends.sentence}"
        return
    if trail.verified is None:
        yield from _unverified(trail, history, wanted)
        return
    if trail.found:
        [point] = trail.suspects
        yield f"first {wanted} in {history.title(point)} ({history.origin(point)})"
    else:
        yield f"first {wanted} in one of these {len(trail.suspects)}, of which only the last could be measured:"
        yield from (history.title(point) for point in trail.suspects)
    yield f"beside what is directly before: {trail.verified.sentence}{_sure(trail.verified)}"
    yield from trail.verified.facts
    yield f"the ends: {trail.ends.sentence}"


def _unverified(trail: CaseSearch, history: History, wanted: str) -> Iterator[str]:
    yield (
        f"nothing is to blame: the ends differ ({trail.ends.sentence}), and none of these suspects is surely {wanted} "
        "than what is directly before it: it may have crept, or come and gone between measurements"
    )
    for point, finding in trail.cleared:
        yield f"{history.title(point)}: {finding.sentence}"


def _sure(finding: CaseFinding) -> str:
    return "" if finding.surely is None else f", at least {words.percent(finding.surely)} (95 % confidence)"


# The files of a search: each comparison's verdicts, and the settings with which `compare` repeats them.

RESULT = "result.json"


@dataclass(frozen=True)
class Evidence:
    folder: Path

    def verdicts(self, question: Question, judgement: Judgement) -> None:
        there = self.folder / question.folder
        write_whole(there / "thresholds.toml", toml(judgement.rules.thresholds))
        write_whole(there / "verdicts.json", document.text(judgement))
        write_whole(there / "verdicts.md", markdown.text(judgement))

    def result(self, trails: Sequence[CaseSearch]) -> None:
        write_json(self.folder / RESULT, [asdict(trail) for trail in trails])


def toml(thresholds: Thresholds) -> str:
    """The thresholds as a settings file."""
    lines = (f"{json.dumps(glob)} = {{ {_fields(entry)} }}\n" for glob, entry in thresholds.entries)
    return "[thresholds]\n" + "".join(lines)


def _fields(entry: object) -> str:
    """The settings that decide whether a case changed, without those for absolute limits."""
    values = dict(entry) if isinstance(entry, dict) else {}
    fields = [f'{name} = "{100 * values[name]:.12f}%"' for name in ("slower", "slower_host") if name in values]
    fields += [f"floor_us = {values['floor_us']!r}"] if "floor_us" in values else []
    return ", ".join(fields)
