"""Rows of several processes as a table, in microseconds: python benchmarks/ranks_table.py RUN.json...

`first` is the median of the first timed call at each placement, `spread` that of all samples. The percentage beside
the late calls is against the last placement, where they were made too.
"""

import statistics
import sys

from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.rows import formatting
from pytest_flashinfer_perf.rows.row import Row

HEADINGS = ("case", "calls", "time", "first", "max over ranks", "200 us late", "skew", "busbw", "% of a link", "spread")


def us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def line(row: Row) -> list[str]:
    seen = row.provenance.ranks
    assert seen is not None
    calls = len(row.stats.data) // max(1, len(row.provenance.placements))  # at each placement
    firsts, at_the_last = row.stats.data[::calls], statistics.median(row.stats.data[-calls:])
    late = f"{us(seen.late_figure_s)} ({100 * (seen.late_figure_s / at_the_last - 1):+.1f} %)"
    skew = f"{us(seen.arrival_skew_s)}, {us(seen.end_skew_s)}"
    speed = "-" if seen.busbw_gb_per_s is None else f"{seen.busbw_gb_per_s:.1f}"
    share = formatting.rate(row.throughput.sol_pct)
    times = us(row.median), us(statistics.median(firsts)), us(seen.max_over_ranks_s), late, skew
    return [row.name, str(len(row.stats.data)), *times, speed, share, formatting.spread(row.spread)]


def main() -> None:
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for run in read.read(sys.argv[1:]):
        for row in run.rows:
            if row.provenance.ranks:
                print(f"| {' | '.join(line(row))} |")


if __name__ == "__main__":
    main()
