"""The host-time section of reports: the slowest plans, calls that wait for the GPU, plans over batch sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_flashinfer_perf.api import Row, formatting
from pytest_flashinfer_perf.extensions.host.host_time import (
    ALLOCATION,
    COPY_TO_HOST,
    SYNCHRONISATION,
    HostTime,
    of,
    outlasts,
    places,
)
from pytest_flashinfer_perf.extensions.reports.sections import Section, Table

Cells = tuple[tuple[str, ...], list[tuple[str, ...]]]
BATCH = "batch_size"
MOST = 20  # of the slowest plans
HEIGHT = 240  # of a plot, in pixels
HEADINGS = f"  {'':<24}{'enqueue':>10}{'plan':>10}{'GPU':>10}{'launch':>7}{'alloc':>6}{'wait':>5}{'copy':>5}"
NOTHING = "--perf-host: nothing was measured on a GPU"


def known(rows: Iterable[Row]) -> list[tuple[Row, HostTime]]:
    return [(row, host) for row in rows if (host := of(row)) is not None]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """For a terminal, in 80 columns: what each call takes and asks for, and the lines of Python that ask."""
    seen = known(rows)
    if not seen:
        yield NOTHING
        return
    yield ""
    yield "what a call costs the host, without a CUDA graph"
    yield HEADINGS
    for shape, backends in formatting.grouped(seen, lambda one: one[0].shape):
        yield shape
        for row, host in backends:
            yield _line(row, host)
            for what in (ALLOCATION, SYNCHRONISATION, COPY_TO_HOST):
                for place in places(host, what):
                    yield from formatting.indented(f"{what}: {place}", 6)


def _line(row: Row, host: HostTime) -> str:
    counts = (host.allocations, host.synchronisations, host.copies_to_host)
    cells = "".join(f"{_count(count):>{width}}" for count, width in zip(counts, (6, 5, 5), strict=True))
    times = "".join(f"{time:>10}" for time in (_us(host.host_us), _us(host.plan_us), formatting.duration(row.median)))
    return f"  {formatting.named(row):<24}{times}{_count(host.launches):>7}{cells}"


def _us(us: float | None) -> str:
    return "-" if us is None else formatting.duration(1e-6 * us)


def _count(count: int | None) -> str:
    return "-" if count is None else str(count)


def waiting(rows: Iterable[Row]) -> Iterator[str]:
    """How many calls the GPU waits for, where it is not given a graph."""
    slower = sum(outlasts(host, row.median) for row, host in known(rows))
    if slower:
        longer = f"{formatting.counted(slower, 'case')} with more host time than GPU time"
        yield from formatting.wrapped(f"{longer}: without a CUDA graph the GPU waits (--perf-host)")


def slowest_plans(rows: Iterable[Row]) -> Cells:
    planned = [(row, host) for row, host in known(rows) if host.plan_us is not None]
    slowest = sorted(planned, key=lambda one: -(one[1].plan_us or 0.0))[:MOST]
    return ("case", "plan", "enqueue", "GPU"), [
        (row.case, _us(host.plan_us), _us(host.host_us), formatting.duration(row.median)) for row, host in slowest
    ]


def who_waits(rows: Iterable[Row]) -> Cells:
    """Calls that wait for the GPU or copy to the host, with their lines."""
    asking = [(row, host) for row, host in known(rows) if host.waits or host.synchronisations or host.copies_to_host]
    return ("case", "enqueue", "synchronisations", "copies to host", "by"), [
        (row.case, _us(host.host_us), _count(host.synchronisations), _count(host.copies_to_host), _places(host))
        for row, host in asking
    ]


def _places(host: HostTime) -> str:
    return "; ".join(place for what in (SYNCHRONISATION, COPY_TO_HOST) for place in places(host, what))


def costliest(rows: Iterable[Row]) -> Cells:
    """The cases with the most host time relative to GPU time."""
    slower = [(row, host) for row, host in known(rows) if outlasts(host, row.median)]
    ordered = sorted(slower, key=lambda one: -one[1].host_us * 1e-6 / one[0].median)[:MOST]
    return ("case", "enqueue", "GPU", "launches", "allocations"), [
        (row.case, _us(host.host_us), formatting.duration(row.median), _count(host.launches), _count(host.allocations))
        for row, host in ordered
    ]


TABLES = {
    "The slowest plans": slowest_plans,
    "Calls that wait for the GPU, or copy to the host": who_waits,
    "The host takes longer than the GPU": costliest,
}


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    """One of the tables that have at least one row, and a plot of the plans over the batches; none on a CPU."""
    made = {title: table(rows) for title, table in TABLES.items()}
    tables = [Table(title, *cells) for title, cells in made.items() if cells[1]]
    if tables:
        points = plans_over_batches(rows)
        yield Section("host", "What calls cost the host", tables, chart=_plans(points) if points else None)


def _plans(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Planning time by batch size, a curve for each backend and shape."""
    axes = {"x": ("batch", "requests in the batch"), "y": ("us", "plan, us")}
    scale = {"type": "log", "nice": False}
    along = {
        axis: {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": {"format": ",~r"}}
        for axis, (field, title) in axes.items()
    }
    return {
        "description": "Time of a plan over the size of its batch, for each backend and shape",
        "height": HEIGHT,
        "data": {"values": points},
        "mark": {"type": "line", "point": {"size": 40}},
        "encoding": {
            **along,
            "color": {"field": "curve", "title": None, "legend": {"columns": 1}},
            "tooltip": [{"field": "curve"}, {"field": "batch"}, {"field": "us", "title": "us", "format": ".4~g"}],
        },
    }


def plans_over_batches(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The points of a curve for each backend and shape that was planned for two batches at least."""
    planned = [(row, host.plan_us) for row, host in known(rows) if host.plan_us is not None and BATCH in row.params]
    points: list[dict[str, Any]] = []

    def curve(one: tuple[Row, float]) -> str:
        """The case but for its batch."""
        row, batch = one[0], f"b{one[0].params[BATCH]}"
        shape = "-".join(word for word in row.shape.split("-") if word != batch)
        return f"{row.identity.routine} {shape} {row.identity.backend}"

    for name, alike in formatting.grouped(planned, curve):
        batches = {row.params[BATCH]: us for row, us in alike}
        if len(batches) > 1:
            points += [{"curve": name, "batch": batch, "us": batches[batch]} for batch in sorted(batches)]
    return points
