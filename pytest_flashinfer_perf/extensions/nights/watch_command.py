"""`flashinfer-perf watch`: what happened over many nights; nothing is measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, printing, verdict, words
from pytest_flashinfer_perf.extensions.compare import judging
from pytest_flashinfer_perf.extensions.nights import changes, pages, record, site
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH
from pytest_flashinfer_perf.extensions.nights.trends import GpuPage

EXAMPLE = "example: flashinfer-perf watch nights -o site --markdown changes.md"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    limits = judging.in_settings(judging.settings(args)).thresholds
    found = pages.of_records(record.read(args.runs), limits)
    site.write(args.output, found)
    if args.markdown:
        file_io.write_whole(args.markdown, changes.text(found))
    printing.show(_lines(found, args.output))
    if any(_is_worse(page) for page in found):
        return verdict.WORSE
    lacks = any(page.gone for page in found) or all(page.is_short for page in found)
    return verdict.COULD_NOT_JUDGE if lacks else verdict.NOTHING_WORSE


def _is_worse(page: GpuPage) -> bool:
    return bool(page.failing) or any(one.is_slower for one in page.there)


def _lines(found: Sequence[GpuPage], output: Path) -> Iterator[str]:
    for page in found:
        counts = (formatting.counted(len(page.nights), "run"), formatting.counted(len(page.cases), "case"))
        yield f"{page.gpu}: {', '.join(counts)}, {len(page.there)} changed"
        for one in page.there:
            crept = f", creeping until {page.when(one.until)}" if one.change.is_drift else ""
            yield from formatting.wrapped(
                f"  {page.when(one.since)}: {one.case.name} {words.percent(one.size)}{crept}", 4
            )
            yield from (line for beside in one.beside() for line in formatting.indented(beside, 4))
        yield from (line for name, why in page.failing.items() for line in formatting.wrapped(f"  {name}, {why}", 4))
        if page.gone:
            yield from formatting.wrapped(f"  not in the newest run: {formatting.some(page.gone)}", 4)
        if page.is_short:
            yield f"  no case has {ENOUGH} runs on one card: too few to tell a change"
    yield f"written to {output / 'index.html'}"


def parser() -> argparse.ArgumentParser:
    made = commands.parser_of(
        "watch",
        "Find the changes of many runs, and make a site of them, which needs no server: a page per model of GPU, a "
        "trend per case, its changes and what else changed with them. Exits with 1 if a case is slower since a change, "
        "or failed and was not measured since; with 2 if cases are gone, or none has enough runs to tell a change.",
        EXAMPLE,
    )
    made.add_argument("runs", type=Path, metavar="DIR", help="Folder with the JSON files of runs.")
    made.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="Folder to write the site to.")
    written = "Write what changed as Markdown to FILE, with the commands that run it again and search for its cause."
    made.add_argument("--markdown", type=Path, metavar="FILE", help=written)
    judging.add_settings(made)
    return made
