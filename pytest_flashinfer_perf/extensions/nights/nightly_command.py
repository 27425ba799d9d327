"""`flashinfer-perf publish` and `watch`: what happened over many nights; nothing is measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, printing, run_file, verdict, words
from pytest_flashinfer_perf.extensions.compare import judging
from pytest_flashinfer_perf.extensions.nights import branch, changes, pages, record, site
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH
from pytest_flashinfer_perf.extensions.nights.record import SUFFIX, Records
from pytest_flashinfer_perf.extensions.nights.trends import GpuPage

PUBLISHES = "example: flashinfer-perf publish nightly.json --remote origin"
WATCHES = "example: flashinfer-perf watch perf-data -o site --markdown changes.md"


def publish(arguments: Sequence[str]) -> int:
    args = publish_parser().parse_args(arguments)
    runs = run_file.read_all(args.files)
    with branch.opened(args.remote, args.branch) as there:
        commit = there.grow(
            lambda known: record.added(runs, known, args.branch), f"Add {formatting.counted(len(runs), 'run')}"
        )
    said = f"in commit {commit[:10]}" if commit else "which had all of it: nothing was added"
    printing.show([f"{formatting.counted(len(runs), 'run')} in branch {args.branch} of {args.remote}, {said}"])
    return 0


def publish_parser() -> argparse.ArgumentParser:
    made = commands.parser_of(
        "publish",
        "Add runs to a branch of a git remote, whose files only grow: JSON, a file per month. The current checkout is "
        "not touched. A run that is there is not added again.",
        PUBLISHES,
    )
    made.add_argument("files", nargs="+", metavar="FILE", help="JSON files of pytest-benchmark, or folders of them.")
    made.add_argument("--branch", default="perf-data", metavar="NAME", help="The branch. Default: %(default)s.")
    _add_remote(made)
    return made


def watch(arguments: Sequence[str]) -> int:
    args = watch_parser().parse_args(arguments)
    limits = judging.in_settings(judging.settings(args)).thresholds
    found = pages.of_records(_records(args.runs, args.remote), limits)
    site.write(args.output, found)
    if args.markdown:
        file_io.write_whole(args.markdown, changes.text(found))
    printing.show(_lines(found, args.output))
    if any(_is_worse(page) for page in found):
        return verdict.WORSE
    lacks = any(page.gone for page in found) or all(page.is_short for page in found)
    return verdict.COULD_NOT_JUDGE if lacks else verdict.NOTHING_WORSE


def _records(runs: str, remote: str) -> Records:
    """Of a folder, with what was published or with the files of the runs themselves; else of a branch."""
    if Path(runs).is_dir():
        files = sorted(Path(runs).glob(f"*{SUFFIX}"))
        texts = [(str(path), path.read_bytes().decode(errors="surrogateescape")) for path in files]
        if not texts:
            made = record.added(run_file.read_all([runs]), lambda _: "", runs)
            texts = [(f"{runs}:{name}", text) for name, text in made.items()]
    else:
        with branch.opened(remote, runs) as there:
            entries = there.files(there.tip()).items()
            texts = [(f"{runs}:{name}", there.text(entry)) for name, entry in entries if name.endswith(SUFFIX)]
    records = Records()
    for where, text in texts:
        records.read(text, where)
    if not records.nights:
        raise run_file.RunError(
            f"{runs}: no published runs: neither a folder of them nor a branch of {remote} that has some"
        )
    return records


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


def watch_parser() -> argparse.ArgumentParser:
    made = commands.parser_of(
        "watch",
        "Find the changes of many runs, and make a site of them, which needs no server: a page per model of GPU, a "
        "trend per case, its changes and what else changed with them. Exits with 1 if a case is slower since a change, "
        "or failed and was not measured since; with 2 if cases are gone, or none has enough runs to tell a change.",
        WATCHES,
    )
    runs = "Folder with published runs or with the JSON files of runs, or the branch to which runs were published."
    made.add_argument("runs", metavar="DIR_OR_BRANCH", help=runs)
    made.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="Folder to write the site to.")
    written = "Write what changed as Markdown to FILE, with the commands that run it again and search for its cause."
    made.add_argument("--markdown", type=Path, metavar="FILE", help=written)
    _add_remote(made)
    judging.add_settings(made)
    return made


def _add_remote(parser: argparse.ArgumentParser) -> None:
    remote = "Name or address of the branch's remote, as git takes it. Default: %(default)s."
    parser.add_argument("--remote", default="origin", metavar="NAME", help=remote)
