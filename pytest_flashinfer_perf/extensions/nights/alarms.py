"""A Markdown file for each change that is sure: made once, kept up to date night after night, closed when it is gone.

Which alarms there are is kept beside them in `alarms.json`. With more nights a change is placed better: an alarm keeps
its name as long as its cases have a change in the same direction within three weeks, and takes whatever else these
do in that direction then: a drift looks like steps at first. Cases that changed in one night share an alarm.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_flashinfer_perf.api import fields, file_io, formatting, printing, run_file, words
from pytest_flashinfer_perf.extensions.bisect.search import RESULT, CaseFinding
from pytest_flashinfer_perf.extensions.nights.trends import NEAR, STILL_THERE, Found, GpuPage

STATE, EVENTS = "alarms.json", "README.md"
PLACED_WITHIN = 21  # nights: a few noisy points place a drift that far from where sixty do
MOST_SHOWN = 50  # cases of an alarm
MOST_KERNELS = 5  # sequences of kernels
ID = re.compile(r"[0-9a-z-]+")
OPEN, CLOSED = "open", "closed"
HEADINGS = ("case", "before", "after", "change", "at least", "detects from")


@dataclass(frozen=True)
class Alarm:
    """A change of one night: `cases` are keys with the card on which each was seen, `since` is the id of a run."""

    id: str
    gpu: str
    since: str
    slower: bool
    state: str
    cases: tuple[tuple[str, str], ...]

    def night(self, page: GpuPage) -> int | None:
        """Where it begins, None if that run is not of this page."""
        return page.place.get(self.since) if page.gpu == self.gpu else None


def read(folder: Path) -> list[Alarm]:
    path = _own(folder, STATE)
    try:
        known = fields.read_list(Alarm, file_io.read_json(path), "it") if path.exists() else []
    except (fields.FieldError, file_io.FileError) as error:
        raise run_file.RunError(f"{path}: not the alarms of earlier nights: {error}") from error
    strange = [alarm.id for alarm in known if not ID.fullmatch(alarm.id)]
    if strange:
        raise run_file.RunError(
            f"{path}: not the alarms of earlier nights: {fields.shown(strange[0])} is no name of a file"
        )
    return known


def update(folder: Path, pages: Sequence[GpuPage]) -> list[Alarm]:
    """Write the file of each alarm, and close those of which nothing is left."""
    alarms = {alarm.id: alarm for alarm in read(folder)}
    for page in pages:
        for alarm, members in _assigned(page, alarms):
            left = [one for one in members if not one.is_gone]
            if left and (alarm.state == OPEN or any(one.is_sure for one in left)):
                cases = dict.fromkeys([*alarm.cases, *map(_name, members)])
                alarms[alarm.id] = replace(alarm, state=OPEN, cases=tuple(cases))
                file_io.write_whole(_own(folder, f"{alarm.id}.md"), "\n".join(_text(folder, alarm.id, left)) + "\n")
            elif alarm.state == OPEN and not _is_left(page, alarm):
                alarms[alarm.id] = replace(alarm, state=CLOSED)
                _close(_own(folder, f"{alarm.id}.md"), page)
    file_io.write_whole(_own(folder, EVENTS), "\n".join(_events(pages, alarms.values())) + "\n")
    file_io.write_json(_own(folder, STATE), fields.written(list(alarms.values())))
    return list(alarms.values())


def _own(folder: Path, name: str) -> Path:
    """A file of this folder, which others may have pushed to: a link would lead to a file anywhere."""
    path = folder / name
    if path.is_symlink():
        raise run_file.RunError(f"{path} is a link, which is not followed in a folder of alarms: remove it")
    return path


def _assigned(page: GpuPage, alarms: dict[str, Alarm]) -> Iterator[tuple[Alarm, list[Found]]]:
    """The alarms of a page, each with what is left of it; new ones for what is sure, still there and of none."""
    kept = [(alarm, night) for alarm in alarms.values() if (night := alarm.night(page)) is not None]
    members: dict[str, list[Found]] = {alarm.id: [] for alarm, _ in kept}
    of = [(alarm.id, night, {(name, alarm.slower) for name in alarm.cases}) for alarm, night in kept]
    free: list[Found] = []
    for one in page.found:
        near = [(abs(one.since - night), known) for known, night, names in of if _is_near(one, night, names)]
        (members[min(near)[1]] if near else free).append(one)
    for one in free:
        if one.is_sure and not one.is_gone:
            alarm = next((a for a, night in kept if _is_same_night(one, a, night)), None) or _new(one, alarms)
            if alarm.id not in members:
                kept.append((alarm, one.since))
            members.setdefault(alarm.id, []).append(one)
    yield from ((alarm, members[alarm.id]) for alarm, _ in kept)


def _is_left(page: GpuPage, alarm: Alarm) -> bool:
    """Whether a level is still another, though not surely: an alarm is not closed and opened again by noise."""
    night, sign = alarm.night(page) or 0, 1 if alarm.slower else -1
    moved = (page.moved(key, card, night) for key, card in alarm.cases)
    return any(sign * share >= STILL_THERE for share in moved)


def _is_near(one: Found, night: int, names: Container[tuple[tuple[str, str], bool]]) -> bool:
    placed = one.since - PLACED_WITHIN <= night <= one.until + PLACED_WITHIN
    return placed and (_name(one), one.is_slower) in names


def _is_same_night(one: Found, alarm: Alarm, night: int) -> bool:
    return alarm.state == OPEN and one.is_slower == alarm.slower and abs(one.since - night) <= NEAR


def _new(one: Found, alarms: dict[str, Alarm]) -> Alarm:
    run = one.page.nights[one.since]
    slug = re.sub(r"[^a-z0-9]+", "-", one.case.name.lower()).strip("-")[:60]
    stem = f"{run.when:%Y-%m-%d}-{one.verdict.lower()}-{slug}"
    names = (stem, *(f"{stem}-{nth}" for nth in range(2, len(alarms) + 3)))
    name = next(name for name in names if name not in alarms)
    alarms[name] = Alarm(name, one.page.gpu, run.id, one.is_slower, OPEN, ())
    return alarms[name]


def _name(one: Found) -> tuple[str, str]:
    return one.key, str(one.stretch.card)


# The text of an alarm.


def _text(folder: Path, name: str, members: Sequence[Found]) -> Iterator[str]:
    first = max(members, key=lambda one: abs(one.size))
    page, others = first.page, len(members) - 1
    more = f" and {formatting.counted(others, 'other case')}" if others else ""
    yield f"# {first.verdict}: {formatting.as_markdown(first.case.name)} {words.percent(first.size)}{more}"
    yield ""
    crept = f", creeping until {_when(page, first.until)}" if first.change.is_drift else ""
    yield f"Open: since {_when(page, first.since)}{crept}; updated with the run of {_when(page, -1)}."
    yield ""
    gpu, card = map(formatting.as_markdown, (page.gpu, str(first.stretch.card)))
    yield f"{gpu}, card {card}, {_commits(first)}."
    yield ""
    yield from formatting.markdown_table(HEADINGS, map(_cells, members[:MOST_SHOWN]))
    if others >= MOST_SHOWN:
        yield f"\nand {formatting.counted(len(members) - MOST_SHOWN, 'more case')}"
    beside = dict.fromkeys(text for one in members[:MOST_SHOWN] for text in one.beside())
    yield from _section(
        "What else changed", [f"* {formatting.as_markdown(text)}" for text in beside] or ["Nothing that is known."]
    )
    for kernels, alike in list(formatting.grouped(members, lambda one: one.kernels))[:MOST_KERNELS]:
        of = formatting.as_markdown(alike[0].case.name) + (
            f" and {formatting.counted(len(alike) - 1, 'other')}" if alike[1:] else ""
        )
        for when, names in zip(("before", "since"), kernels, strict=True):
            yield from _section(f"Kernels {when}, of {of}", map(_code, names or ["not known"]))
    if first.case.repro:
        yield from _section("Run it again", [_code(first.case.repro)])
    yield from _section("Which commit or release", _bisect(folder / name, first))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", *lines)


def _code(line: str) -> str:
    return f"    {printing.safe(line)}"


def _when(page: GpuPage, night: int) -> str:
    return f"{page.nights[night].when:%Y-%m-%d %H:%M}"


def _commits(one: Found) -> str:
    before, after = (one.page.nights[night].commit or "unknown" for night in (one.last_before, one.since))
    return f"commit {formatting.as_markdown(before[:10])} before and {formatting.as_markdown(after[:10])} since"


def _cells(one: Found) -> tuple[str, ...]:
    before, after = (_figure(one, level) for level in (one.change.before, one.change.after))
    surely = words.percent(one.effect.bound(-one.sign))
    return one.case.name, before, after, words.percent(one.size), surely, words.percent(one.detectable)


def _figure(one: Found, level: float) -> str:
    if one.domain == "cycles":
        return f"{math.exp(level):.0f} cycles"
    return f"{formatting.duration(1e-6 * math.exp(level))}{' busy' * (one.domain == 'busy')}"


def _close(path: Path, page: GpuPage) -> None:
    """Say so where the alarm said since when it is open, and leave the rest as it was last."""
    text = path.read_text(encoding="utf-8") if path.exists() else "# An alarm\n\nOpen:\n"
    closed = f"Closed: with the run of {_when(page, -1)} the change is gone. It was open"
    file_io.write_whole(path, re.sub(r"^Open", closed, text, count=1, flags=re.MULTILINE))


# The bisect of an alarm lies in the folder of its name.


@dataclass(frozen=True)
class SearchResult:
    """What a search found for one case."""

    case: str
    suspects: tuple[str, ...] = ()
    verified: CaseFinding | None = None


def _bisect(folder: Path, one: Found) -> Iterator[str]:
    command = bisect_command(folder, one)
    result = folder / RESULT
    if result.exists():
        try:
            found = fields.read_list(SearchResult, file_io.read_json(result), "it")
        except (fields.FieldError, file_io.FileError) as error:
            raise run_file.RunError(f"{result}: no result of a bisect: {error}") from error
        yield from (f"* {formatting.as_markdown(_outcome(said))}" for said in found)
    elif command:
        yield _code(shlex.join(command))
    else:
        yield "Both sides ran the same FlashInfer and the same commit of the tests: there is nothing to search in."


def _outcome(said: SearchResult) -> str:
    if said.verified and len(said.suspects) == 1:
        return f"{said.case}: since {said.suspects[0]}, {said.verified.sentence}"
    return f"{said.case}: {', '.join(said.suspects) or 'nothing'} is suspected, and nothing is sure"


def bisect_command(folder: Path, one: Found) -> list[str]:
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
    find = one.verdict.lower()
    return ["flashinfer-perf", "bisect", *ends, "--find", find, "--output", str(folder), "--", *pytest]


# What happened besides, and a list of all alarms.


def _events(pages: Sequence[GpuPage], alarms: Iterable[Alarm]) -> Iterator[str]:
    yield "# Changes"
    listed = sorted(alarms, key=lambda alarm: alarm.id, reverse=True)
    yield from _section("Alarms", [f"* {alarm.state}: [{alarm.id}]({alarm.id}.md)" for alarm in listed] or ["None."])
    for page in pages:
        events = [
            f"* {_when(page, event.night)}: {formatting.as_markdown(event.text)}" for event in reversed(page.events)
        ]
        yield from _section(f"What else happened on {formatting.as_markdown(page.gpu)}", events or ["Nothing."])
