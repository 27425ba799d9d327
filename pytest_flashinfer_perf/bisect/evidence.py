"""The files of a search: each comparison's verdicts, and the settings with which `compare` repeats them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_flashinfer_perf.bisect.question import Question
from pytest_flashinfer_perf.bisect.search import CaseSearch
from pytest_flashinfer_perf.files import write_json, write_whole
from pytest_flashinfer_perf.gate import document, markdown
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Judgement

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
