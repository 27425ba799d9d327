"""What calls of runs cost the host, for each routine and backend: python benchmarks/host_table.py RUN.json...

    pytest --perf-suite=default --perf-refcheck=off --benchmark-json=RUN.json

A case that several files have is taken from the first. `enqueue` is the median of the cases that take the GPU less than
0.4 ms, for which a round has many calls; `slower` counts the cases that take the host longer than the GPU.
"""

import statistics
import sys

from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.runs import host_time

SHORT_US = 400
HEADINGS = ("routine", "backend", "cases", "enqueue", "plan", "launches", "allocations", "waits", "copies", "slower")


def by_backend(files):
    rows = {row.identity.case: row for run in reversed(runs.read(files)) for row in run.rows if row.host}
    found = {}
    for row in sorted(rows.values(), key=lambda row: (row.identity.family, row.identity.routine, row.identity.backend)):
        found.setdefault((row.identity.routine, row.identity.backend), []).append(row)
    return found


def span(values, unit=""):
    """The smallest and the largest."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    least, most = (f"{end:.0f}{unit}" for end in (min(known), max(known)))
    return least if least == most else f"{least} to {most}"


def line(rows):
    hosts = [row.host for row in rows]
    short = [row.host.host_us for row in rows if 1e6 * row.median < SHORT_US]
    yield str(len(rows))
    yield f"{statistics.median(short):.0f} us" if short else "-"
    yield span([host.plan_us for host in hosts], " us")
    for name in ("launches", "allocations", "synchronisations", "copies_to_host"):
        yield span([getattr(host, name) for host in hosts])
    yield str(sum(host_time.outlasts(row.host, row.median) for row in rows))


def main():
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    print(f"| {' | '.join(HEADINGS)} |")
    print(f"|{'---|' * len(HEADINGS)}")
    for names, rows in by_backend(sys.argv[1:]).items():
        print(f"| {' | '.join((*names, *line(rows)))} |")


if __name__ == "__main__":
    main()
