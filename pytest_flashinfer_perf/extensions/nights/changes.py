"""What many runs show to be slower, faster or failing, as Markdown: of a job's summary or of an issue."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf.api import formatting, printing, words
from pytest_flashinfer_perf.extensions.nights.trends import Found, GpuPage
from pytest_flashinfer_perf.extensions.reports import markdown

MOST_SHOWN = 50  # cases that changed in one night
HEADINGS = ("case", "before", "after", "change", "at least", "detects from")


def text(pages: Iterable[GpuPage]) -> str:
    return "\n".join(line for page in pages for line in _page(page)) + "\n"


def _page(page: GpuPage) -> Iterator[str]:
    yield f"# {formatting.as_markdown(page.gpu)}: {len(page.there)} changed, {len(page.failing)} failing\n"
    yield f"{formatting.counted(len(page.nights), 'run')}, the newest of {page.when(-1)}."
    for _, alike in formatting.grouped(page.there, lambda one: (one.since, one.verdict)):
        yield from _of_a_night(alike)
    missing = [f"{name}, not in the newest run" for name in page.gone]
    failing = [*(f"{name}, {why}" for name, why in page.failing.items()), *missing]
    yield from _section("Failing or missing", _listed(failing)) if failing else ()
    yield ""


def _of_a_night(members: Sequence[Found]) -> Iterator[str]:
    """The changes of one night in one direction, with the commands for the largest of them."""
    first = max(members, key=lambda one: abs(one.size))
    page, left = first.page, len(members) - MOST_SHOWN
    before, after = (page.nights[night].commit or "unknown" for night in (first.last_before, first.since))
    yield from _section(f"{first.verdict} since {page.when(first.since)}", [])
    yield f"Commit {formatting.as_markdown(before[:10])} before and {formatting.as_markdown(after[:10])} since.\n"
    yield from markdown.table(HEADINGS, map(_cells, members[:MOST_SHOWN]))
    if left > 0:
        yield f"\nand {formatting.counted(left, 'more case')}"
    beside = dict.fromkeys(said for one in members[:MOST_SHOWN] for said in one.beside())
    yield from ("", *(_listed(beside) if beside else ["Nothing that is known changed with it."]))
    if first.case.repro:
        yield from ("\nRun it again:\n", _code(first.case.repro))
    command = bisect_command(first)
    if command:
        yield from ("\nFind the commit or the release:\n", _code(shlex.join(command)))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from (f"\n## {title}\n", *lines)


def _listed(texts: Iterable[str]) -> list[str]:
    return [f"* {formatting.as_markdown(one)}" for one in texts]


def _code(line: str) -> str:
    return f"    {printing.safe(line)}"


def _cells(one: Found) -> tuple[str, ...]:
    before, after = (_figure(one, level) for level in (one.change.before, one.change.after))
    surely = words.percent(one.effect.bound(-one.sign))
    return one.case.name, before, after, words.percent(one.size), surely, words.percent(one.detectable)


def _figure(one: Found, level: float) -> str:
    if one.domain == "cycles":
        return f"{math.exp(level):.0f} cycles"
    return f"{formatting.duration(1e-6 * math.exp(level))}{' busy' * (one.domain == 'busy')}"


def bisect_command(one: Found) -> list[str]:
    """The search between what ran before the change and what has run since; empty where that is the same."""
    before, after = one.around
    old, new = (one.page.cards[night].software.get("flashinfer") for night in (before, after))
    good, bad = (one.page.nights[night].commit for night in (before, after))
    if old and new and old != new:
        ends = ["--releases", old, new]
    elif good and bad and good != bad:
        ends = ["--repo", ".", "--good", good, "--bad", bad]
    else:
        return []
    pytest = shlex.split(one.case.repro or shlex.join(["pytest", one.case.test]))[1:]
    return ["flashinfer-perf", "bisect", *ends, "--find", one.verdict.lower(), "--", *pytest]
