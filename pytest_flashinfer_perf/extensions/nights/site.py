"""A site of files: a page per model of GPU, whose data are scripts that it loads when they are asked for.

It needs no server: from a folder a browser runs scripts, and fetches nothing. No file grows with the number of cases.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pytest_flashinfer_perf.api import file_io, formatting, words
from pytest_flashinfer_perf.extensions import reports
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH
from pytest_flashinfer_perf.extensions.nights.trends import Found, GpuPage, Stretch

AT_ONCE = 200  # cases whose trends are in one file: 400 kB with a year of nights
LISTED = 3000  # cases that a file of names has
PARTS_OF = 1e-4  # of the case's level, in which its figures are written
SEEN_FROM = 3.0  # standard deviations, from which on a step is found within five nights
MOST_NAMED = 100
FARTHEST = 1e15  # of these parts
OWN = ("index", "site")  # names of files that are no page of a GPU


def write(folder: Path, pages: Sequence[GpuPage]) -> None:
    """The start page, a page for each model of GPU, and what all of them share."""
    names = _names(pages)
    _write_shared(folder, names, pages)
    for name, page in zip(names, pages, strict=True):
        _write_page(folder, name, page)


def _names(pages: Sequence[GpuPage]) -> list[str]:
    """Names of files; one that is taken, as GPUs may differ in letters that no file should have, gets a number."""
    names: list[str] = []
    for page in pages:
        slug = re.sub(r"[^a-z0-9]+", "-", page.gpu.lower()).strip("-")[:60] or "gpu"
        numbered = (f"{slug}-{nth}" for nth in range(1, len(pages) + 2))
        names.append(next(name for name in (slug, *numbered) if name not in (*OWN, *names)))
    return names


def _write_shared(folder: Path, names: Sequence[str], pages: Sequence[GpuPage]) -> None:
    own = resources.files(__package__)
    styles = (resources.files(reports) / "report.css", own / "site.css")
    file_io.write_whole(folder / "site.css", "".join(style.read_text(encoding="utf-8") for style in styles))
    file_io.write_whole(folder / "site.js", (own / "site.js").read_text(encoding="utf-8"))
    listed = [{"page": name, "gpu": page.gpu, **_health(page)} for name, page in zip(names, pages, strict=True)]
    _write_html(folder, "index", "Performance by night")
    _write_data(folder, "index", {"pages": listed})


def _write_html(folder: Path, name: str, title: str) -> None:
    template = resources.files(__package__).joinpath("site.html").read_text(encoding="utf-8")
    text = template.replace("{{ title }}", html.escape(title)).replace("{{ data }}", html.escape(name))
    file_io.write_whole(folder / f"{name}.html", text)


def _write_data(folder: Path, name: str, data: Any) -> None:
    said = json.dumps(data, allow_nan=False, separators=(",", ":"))
    file_io.write_whole(folder / f"{name}.js", f"watch({json.dumps(name)},{said});\n")


def _write_page(folder: Path, name: str, page: GpuPage) -> None:
    _write_html(folder, name, page.gpu)
    sure = page.sure
    changed = {one.stretch.case: one for one in sorted(sure, key=lambda one: abs(one.now))}
    order = [*reversed(changed), *sorted(set(range(len(page.cases))) - set(changed), key=lambda i: page.cases[i].name)]
    rows = [_row(page, case, changed.get(case), nth // AT_ONCE) for nth, case in enumerate(order)]
    lists = _chunks(folder, f"{name}/list", rows, LISTED)
    stretches = _by_case(page)
    for nth in range(0, len(order), AT_ONCE):
        trends = {page.keys[case]: _trend(page, case, stretches[case], sure) for case in order[nth : nth + AT_ONCE]}
        _write_data(folder, f"{name}/trends-{nth // AT_ONCE}", trends)
    changes = [_change(one) for one in sorted(sure, key=lambda one: one.since, reverse=True)]
    facts = {"gpu": page.gpu, "lists": lists, "changes": changes[:MOST_NAMED], "count": len(order), **_health(page)}
    nights = [[page.when(nth), (one.commit or "")[:10]] for nth, one in enumerate(page.nights)]
    routines = sorted({case.routine or "" for case in page.cases})
    _write_data(folder, name, {**facts, "nights": nights, "routines": routines})


def _chunks(folder: Path, name: str, rows: Sequence[Any], size: int) -> int:
    """The number of files that have these rows."""
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    for nth, part in enumerate(parts):
        _write_data(folder, f"{name}-{nth}", part)
    return len(parts)


def _by_case(page: GpuPage) -> list[list[Stretch]]:
    made: list[list[Stretch]] = [[] for _ in page.cases]
    for one in page.stretches:
        made[one.case].append(one)
    return made


def _health(page: GpuPage) -> dict[str, Any]:
    """What the newest run says, and of how much nothing can be said."""
    longest = {one.case: one for one in sorted(page.stretches, key=lambda one: len(one.at))}.values()
    short = sum(len(one.at) < ENOUGH for one in longest)
    noisy = sum(SEEN_FROM * one.levels.sd > page.least[one.case] for one in longest)
    few = f"{formatting.counted(short, 'case')} with fewer than {ENOUGH} runs on one card: too few to tell a change"
    loud = f"{formatting.counted(noisy, 'case')} with a threshold below {SEEN_FROM:g} sd: too noisy to see it soon"
    there = page.there
    return {
        "when": page.nights[-1].when.isoformat(),
        "runs": len(page.nights),
        "measured": int(page.has[-1].sum()),
        "slower": sum(one.is_slower for one in there),
        "faster": sum(not one.is_slower for one in there),
        "failed": dict(list(page.failing.items())[:MOST_NAMED]),
        "gone": page.gone[:MOST_NAMED],
        "unsure": [said for count, said in ((short, few), (noisy, loud)) if count],
    }


def _row(page: GpuPage, case: int, found: Found | None, chunk: int) -> list[Any]:
    """What the list of cases shows of one."""
    said = page.cases[case]
    latest = page.us[:, case][~np.isnan(page.us[:, case])][-1]
    size = None if found is None else words.percent(found.size)
    state = "" if found is None else "gone" if found.is_gone else found.verdict
    return [page.keys[case], said.name, said.routine or "", float(f"{latest:.5g}"), size, state, chunk]


def _trend(page: GpuPage, case: int, stretches: Sequence[Stretch], sure: Sequence[Found]) -> dict[str, Any]:
    column = page.values[:, case]
    middle = float(np.nanmedian(column))
    parts = (
        np.where(np.isnan(column), 0, np.rint((column / middle - 1) / PARTS_OF).clip(-FARTHEST, FARTHEST))
        .astype(int)
        .tolist()
    )
    said = page.cases[case]
    return {
        "name": said.name,
        "unit": page.domains[case],
        "middle": float(f"{middle:.6g}"),
        "values": [None if lacks else value for value, lacks in zip(parts, np.isnan(column).tolist(), strict=True)],
        "levels": [level for stretch in stretches for level in _levels(stretch)],
        "changes": [_change(one) for one in sure if one.stretch.case == case],
        "facts": {"test": said.test, "again": said.repro},
    }


def _levels(stretch: Stretch) -> Iterator[list[float]]:
    """From which night to which, the level, and the factor by which noise makes it larger or smaller."""
    bounds = stretch.levels.bounds
    for start, end in pairwise(bounds):
        level = float(np.exp(np.median(stretch.values[start:end])))
        band = float(np.exp(2 * stretch.levels.sd))
        yield [int(stretch.at[start]), int(stretch.at[end - 1]), float(f"{level:.6g}"), float(f"{band:.6g}")]


def _change(one: Found) -> dict[str, Any]:
    return {
        "key": one.key,
        "name": one.case.name,
        "night": one.since,
        "until": one.until,
        "size": words.percent(one.size),
        "state": "gone" if one.is_gone else one.verdict,
        "detects": words.percent(one.detectable),
        "beside": list(one.beside()),
    }
