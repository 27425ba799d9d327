"""What calls cost the host, as a table of the terminal and of reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf.api import Row, formatting
from pytest_flashinfer_perf.extensions.host.host_time import HostTime, of, places
from pytest_flashinfer_perf.extensions.reports.sections import Section, Table

MOST = 20  # in a report
WIDTHS = {"enqueue": 10, "plan": 10, "GPU": 10, "launches": 9, "allocs": 7, "waits": 6}
NOTHING = "--perf-host: nothing was measured on a GPU"


def with_host_time(rows: Iterable[Row]) -> list[tuple[Row, HostTime]]:
    return [(row, host) for row in rows if (host := of(row)) is not None]


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A table of 80 columns: what each call costs the host, and the lines of Python that wait."""
    shown = with_host_time(rows)
    if not shown:
        yield NOTHING
        return
    yield ""
    yield "what a call costs the host, without a CUDA graph"
    yield f"  {'':<24}{_in_columns(WIDTHS)}"
    for shape, backends in formatting.grouped(shown, lambda one: one[0].shape):
        yield shape
        for row, host in backends:
            yield f"  {formatting.named(row):<24}{_in_columns(_cells(row, host))}"
            for place in places(host):
                yield from formatting.indented(f"waits: {place}", 6)


def _in_columns(cells: Iterable[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS.values(), strict=True))


def _cells(row: Row, host: HostTime) -> tuple[str, ...]:
    times = (_us(host.host_us), _us(host.plan_us), formatting.duration(row.median))
    counts = (host.launches, host.allocations, host.synchronisations)
    return (*times, *("-" if count is None else str(count) for count in counts))


def _us(us: float | None) -> str:
    return "-" if us is None else formatting.duration(1e-6 * us)


def waiting(rows: Iterable[Row]) -> Iterator[str]:
    """How many calls the GPU waits for, where it is not given a graph."""
    slower = sum(host.host_us > 1e6 * row.median for row, host in with_host_time(rows))
    if slower:
        longer = f"{formatting.counted(slower, 'case')} with more host time than GPU time"
        yield from formatting.wrapped(f"{longer}: without a CUDA graph the GPU waits (--perf-host)")


def sections(rows: Sequence[Row]) -> Iterator[Section]:
    """The calls that cost the host most, the plans included; none on a CPU."""
    costliest = sorted(with_host_time(rows), key=lambda one: -(one[1].host_us + (one[1].plan_us or 0.0)))[:MOST]
    if costliest:
        cells = [(row.case, *_cells(row, host), "; ".join(places(host))) for row, host in costliest]
        table = Table("The calls that cost it most", ("case", *WIDTHS, "waits by"), cells)
        yield Section("host", "What calls cost the host", [table])
