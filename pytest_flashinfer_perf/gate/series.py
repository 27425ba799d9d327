"""A case over many runs: which of its rows count, by what they are judged, and how sure a change between levels is.

For whoever keeps runs and looks at more than two sides; what two sides say of each other is in `effects.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import figures, loaded_machine, match, noise
from pytest_flashinfer_perf.gate.effects import RISK, Domain, Effect, Replicates
from pytest_flashinfer_perf.gate.match import FACETS, Reason
from pytest_flashinfer_perf.gate.noise import Noise
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.rows.scatter import is_measured

FACETS_OF_A_SERIES = (Reason.INSTRUMENT, Reason.COLD_L2, Reason.CUDA_GRAPH, Reason.CONDITIONS)


def counts(row: Row) -> bool:
    """Whether a level may be made of it: its time is that of the work, on a machine that nobody else used."""
    return is_measured(row.median) and row.is_sound and not loaded_machine.is_loaded(row)


def conditions(run: Run, row: Row) -> list[str]:
    """Say how the row was measured: rows of a case that differ in it belong to different series."""
    return [str(facet.of(run, row)) for facet in FACETS if facet.reason in FACETS_OF_A_SERIES]


def failures(run: Run) -> Iterator[tuple[str, str]]:
    """The cases that failed or had a wrong answer, each with the reason."""
    for case, trouble in match.failures(run):
        yield case.name, f"{trouble.reason}: {trouble.sentence}"


def figures_of(row: Row) -> dict[str, float | None]:
    """Give its time and what is judged instead: busy time where the host makes the gaps, cycles where SMs pace it."""
    paced = figures.paced_by_sms(row) and figures.is_long(row)
    return {
        Domain.TIME.value: row.median,
        Domain.BUSY.value: row.timed.busy if row.timed.gap_of == "host" else None,
        Domain.CYCLES.value: figures.cycles(row) if paced else None,
    }


def compared_by(rows: Sequence[Row], domain: str) -> list[float]:
    """Give the figure of each row that this domain compares."""
    of = {Domain.CYCLES.value: figures.cycles_alike, Domain.GAPS.value: figures.gaps_plus_first_kernel_time}
    return [one.value for one in of.get(domain, figures.kernel_times)(rows)]


def deviation(rows: Sequence[Row], domain: str) -> float:
    """The standard deviation between these processes, of logarithms of what is compared in this domain."""
    values = compared_by(rows, domain) or compared_by(rows, Domain.TIME)  # some of these rows may lack the former
    return math.sqrt(noise.variance(list(map(math.log, values))))


def between(  # noqa: PLR0913 - the parts of an effect
    domain: str, before: Sequence[float], after: Sequence[float], *, sd: float, alike: float, df: float
) -> Effect:
    """The change between two levels, each of them the figures of some runs in a row.

    `sd` is that of logarithms from one run to the next; what both levels scatter by counts if it is more. Runs that are
    `alike` the one before by this share, beyond their level, are fewer than they seem.
    """
    sides = Replicates(domain, domain, tuple(before), tuple(after), paired=False)
    variance = max(sd**2, sides.variance) * (1 + alike) / (1 - alike)
    return Effect(sides, Noise(variance, df, "runs"))


def is_sure(effect: Effect, sign: int, looks: int) -> bool:
    """Whether noise would show as much in this direction less often than once in twenty times so many looks."""
    return effect.p(sign) <= RISK / looks
