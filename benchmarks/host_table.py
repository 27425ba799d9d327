"""What calls of runs cost the host, for each routine and backend: python benchmarks/host_table.py RUN.json...

    pytest --perf-suite=default --perf-refcheck=off --benchmark-json=RUN.json

A case that several files have is taken from the first. `enqueue` is the median of the cases that take the GPU less than
0.4 ms, for which a round has many calls; `slower` counts the cases that take the host longer than the GPU.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.extensions.host.host_time import of, outlasts
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.rows.row import Row

SHORT_US = 400
HEADINGS = ("routine", "backend", "cases", "enqueue", "plan", "launches", "allocations", "waits", "copies", "slower")


def by_backend(files: Sequence[str]) -> dict[tuple[str, str], list[Row]]:
    rows = {row.identity.case: row for run in reversed(read.read(files)) for row in run.rows if of(row)}
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows.values(), key=_family):
        found.setdefault((row.identity.routine or "", row.identity.backend or ""), []).append(row)
    return found


def _family(row: Row) -> tuple[str, ...]:
    named = row.identity
    return named.family or "", named.routine or "", named.backend or ""


def span(values: Sequence[float | None], unit: str = "") -> str:
    """The smallest and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    least, most = (f"{end:.0f}{unit}" for end in (min(known), max(known)))
    return least if least == most else f"{least} to {most}"


def line(rows: Sequence[Row]) -> Iterator[str]:
    seen = [(host, row.median) for row in rows if (host := of(row))]
    hosts = [host for host, _ in seen]
    short = [host.host_us for host, on_device in seen if 1e6 * on_device < SHORT_US]
    yield str(len(rows))
    yield f"{statistics.median(short):.0f} us" if short else "-"
    yield span([host.plan_us for host in hosts], " us")
    for name in ("launches", "allocations", "synchronisations", "copies_to_host"):
        yield span([getattr(host, name) for host in hosts])
    yield str(sum(outlasts(host, on_device) for host, on_device in seen))


def main() -> None:
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"|{'---|' * len(HEADINGS)}")
    for names, rows in by_backend(sys.argv[1:]).items():
        print(f"| {' | '.join((*names, *line(rows)))} |")


if __name__ == "__main__":
    main()
