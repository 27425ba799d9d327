"""Rows of several processes as a table, in microseconds: python benchmarks/ranks_table.py RUN.json...

`first` is the median of the first timed call at each placement, `spread` that of all samples. The percentage beside
the late calls is against as many punctual ones right before them. The last line counts the calls, and those that ended
on some rank before another had arrived: of the timed ones, and of the proof that the ranks have one clock.
"""

import math
import statistics
import sys
from collections.abc import Sequence

from pytest_flashinfer_perf.extensions.ranks import rank_times
from pytest_flashinfer_perf.extensions.ranks.rank_times import RankTimes
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.rows import formatting
from pytest_flashinfer_perf.rows.row import Row

HEADINGS = ("case", "calls", "time", "first", "max over ranks", "200 us late", "skew", "busbw", "% of a link", "spread")


def us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f}"


def line(row: Row) -> list[str]:
    seen = rank_times.of(row)
    assert seen is not None
    calls = len(row.stats.data) // max(1, len(row.provenance.placements))  # at each placement
    firsts, punctual = row.stats.data[::calls], seen.punctual_figure_s or math.nan
    late = f"{us(seen.late_figure_s)} ({100 * (seen.late_figure_s / punctual - 1):+.1f} %)"
    skew = f"{us(seen.arrival_skew_s)}, {us(seen.end_skew_s)}"
    speed = "-" if seen.busbw_gb_per_s is None else f"{seen.busbw_gb_per_s:.1f}"
    share = formatting.rate(row.throughput.sol_pct)
    times = us(row.median), us(statistics.median(firsts)), us(seen.max_over_ranks_s), late, skew
    return [row.name, str(len(row.stats.data)), *times, speed, share, formatting.spread(row.spread)]


def too_early(seen: RankTimes) -> int:
    """The calls that ended on some rank before another had arrived."""
    calls = zip(zip(*seen.arrivals_s, strict=True), zip(*seen.ends_s, strict=True), strict=True)
    return sum(min(ends) < max(arrivals) for arrivals, ends in calls)


def counted(rows: Sequence[RankTimes]) -> str:
    timed, proved = sum(len(row.ends_s[0]) for row in rows), sum(row.clock_calls for row in rows)
    violations = sum(map(too_early, rows)), sum(row.clock_violations for row in rows)
    return f"{len(rows)} rows: {violations[0]} of {timed:,} timed calls, {violations[1]} of {proved:,} of the proof"


def main() -> None:
    if len(sys.argv) == 1:
        sys.exit(__doc__)
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    rows = [row for run in read.read(sys.argv[1:]) for row in run.rows if rank_times.of(row)]
    for row in rows:
        print(f"| {' | '.join(line(row))} |")
    print(f"\n{counted([seen for row in rows if (seen := rank_times.of(row))])}")


if __name__ == "__main__":
    main()
