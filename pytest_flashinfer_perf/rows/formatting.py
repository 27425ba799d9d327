"""Formatting that tables share: durations, rates, line wrapping, Markdown."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from pytest_flashinfer_perf.printing import safe
from pytest_flashinfer_perf.rows.row import Row

T = TypeVar("T")
K = TypeVar("K")

WIDTH, NARROWEST = 80, 40  # what pytest takes where there is no terminal, or one that says less
LONGEST_NAME = 64  # of kernels
COLD = {"rotate": "cold L2 by rotation", "flush": "cold L2 by flush", "none": "hot L2"}


def duration(seconds: float) -> str:
    """Four digits with the unit that suits: 1.412 us, 33.40 us, 3.214 ms."""
    scale, unit = next((s, u) for s, u in ((1e6, "us"), (1e3, "ms"), (1.0, "s")) if seconds * s < 1000 or u == "s")
    return f"{seconds * scale:#.4g} {unit}"


def width() -> int:
    """The terminal's columns, as pytest has them: COLUMNS wins, and a pipe has none."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns
    return columns if columns >= NARROWEST else WIDTH


def wrapped(text: str, indent: int = 2) -> list[str]:
    """Lines of the terminal's width; what does not fit, a path for example, stays in one piece."""
    return textwrap.wrap(text, width(), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def indented(text: str, by: int) -> list[str]:
    return wrapped(" " * by + text, by + 2)


def by_count(reasons: Counter[str]) -> Iterator[str]:
    """Lines of a terminal, the most frequent reason first."""
    for reason, count in reasons.most_common():
        yield from wrapped(f"{count:>5}  {reason}", 7)


def last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def some(names: Sequence[str], most: int = 5) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


def rate(value: float | None) -> str:
    """A rate in at most 6 characters, of which none says nothing, as 0.0000 would."""
    if not value:
        return "-"
    if value >= 99999.5 or value < 1e-3:
        return f"{value:.0e}"
    digits = next((d for d, least in enumerate((100, 10, 0.1, 0.01)) if value >= least), 4)
    return f"{value:.{digits}f}"


def spread(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def cold_l2(row: Row) -> str:
    return COLD.get(row.provenance.cold_l2 or "", "L2 not known")


def provenance(row: Row) -> str:
    """Where and how a row was measured: only rows that agree in it stand side by side."""
    identity, how = row.identity, row.provenance
    several = [f"{how.cpu_threads} threads"] if (how.cpu_threads or 1) > 1 else []
    ways = [how.instrument, *several, cold_l2(row), *(["CUDA graph"] if how.cuda_graph else [])]
    roof = f"roof {row.throughput.peaks}" if row.throughput.peaks else "roof not measured"
    fallback = " (fallback)" if how.fallback else ""
    where = f"{identity.device} {identity.device_name}"
    return f"{identity.routine or 'own kernels'} on {where}: {', '.join(ways)}{fallback}, {roof}"


def shortened(name: str) -> str:
    """A kernel's mangled name may have hundreds of letters, and its end tells it from its siblings."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}...{name[-LONGEST_NAME // 2 :]}"


def as_markdown(text: str) -> str:
    """Names as they are: neither Markdown nor HTML nor a formula, and on one line of a table."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", " ".join(map(safe, text.split())))
    inert = escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return inert.replace("$", "<span>$</span>")  # as GitHub asks for what is no formula


def software(versions: Mapping[str, Any]) -> str:
    named = [f"{name} {version}" for name, version in versions.items() if version is not None and name != "gpu"]
    return ", ".join(named)


def named(row: Row) -> str:
    """The backend, and what it chose where that has another name."""
    backend, resolved = row.identity.backend or "", row.setup.resolved_backend
    return backend if resolved in (None, backend, "sdpa") else f"{backend} ({resolved})"


def grouped(items: Iterable[T], key: Callable[[T], K]) -> Iterator[tuple[K, list[T]]]:
    """Groups in the order in which each was first seen."""
    listed = list(items)
    first = {name: i for i, name in enumerate(dict.fromkeys(map(key, listed)))}
    for name, group in groupby(sorted(listed, key=lambda item: first[key(item)]), key):
        yield name, list(group)
