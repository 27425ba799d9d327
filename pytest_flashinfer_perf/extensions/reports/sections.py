"""What extensions add to a report of runs, told once: Markdown and the page show the same sections.

`pytest_perf_sections` of an extension gives them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.api import Run, loading


@dataclass(frozen=True)
class Table:
    """A table, or none where it has no headings, and the sentences below it. Cells are text."""

    title: str
    headings: Sequence[str] = ()
    lines: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """`name` is one word, by which a page links to it.

    What is an answer stands above the tables of all cases, and is not folded.
    """

    name: str
    title: str
    tables: Sequence[Table]
    is_answer: bool = False


def of(runs: Sequence[Run]) -> list[Section]:
    """The sections of all extensions that have something to tell of these runs."""
    return list(loading.joined(loading.manager().hook.pytest_perf_sections(runs=runs)))
