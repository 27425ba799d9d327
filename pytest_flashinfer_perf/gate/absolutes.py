"""Limits without a baseline: rates to reach, a limit relative to another backend, limits of host time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import effects
from pytest_flashinfer_perf.gate.effects import Replicates
from pytest_flashinfer_perf.gate.sides import ComparedCase
from pytest_flashinfer_perf.gate.thresholds import Rival, Threshold
from pytest_flashinfer_perf.runs import host_time
from pytest_flashinfer_perf.runs.host_time import SYNCHRONISATION, HostTime
from pytest_flashinfer_perf.runs.row import Row

NOT_WRITTEN = "its rows do not say what it asks of the host"


@dataclass(frozen=True)
class Broken:
    """A limit that is exceeded or not reached; `unknown` if the rows lack the number to compare."""

    sentence: str
    unknown: bool = False


def broken(case: ComparedCase, asked: Threshold) -> list[Broken]:
    if not case.head:
        return []
    rival = _rival(case, asked.max_vs_backend) if asked.max_vs_backend else ()
    return [*_rates(case, asked), *rival, *_host(case, asked)]


def _rates(case: ComparedCase, asked: Threshold) -> Iterator[Broken]:
    for field in ("tflops", "sol_pct"):
        least = getattr(asked, f"min_{field}")
        reached = [getattr(row.throughput, field) for row in case.after]
        known = [float(value) for value in reached if value is not None]
        if least is None:
            continue
        if len(known) < len(reached):
            yield Broken(f"min_{field} = {least:g}: its rows have no {field}", unknown=True)
        elif statistics.median(known) < least:
            yield Broken(f"min_{field} = {least:g}: it reaches {statistics.median(known):.4g}")


def _host(case: ComparedCase, asked: Threshold) -> Iterator[Broken]:
    hosts = [row.host for row in case.after]
    for field in ("host_us", "plan_us", "launches"):
        most = getattr(asked, f"max_{field}")
        if most is not None:
            yield from _at_most(field, most, hosts)
    if asked.no_sync:
        yield from _never_waits(hosts)
    if asked.slower_host is not None:
        yield from _comparable([row.host for row in case.rows])


def _at_most(field: str, most: float, hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    """A case for which nothing is planned breaks no limit of plans."""
    seen = [getattr(host, field) for host in hosts if host]
    known = [value for value in seen if value is not None]
    if len(seen) < len(hosts) or (len(known) < len(seen) and field != "plan_us"):
        yield Broken(f"max_{field} = {most:g}: {NOT_WRITTEN}", unknown=True)
    elif known and statistics.median(known) > most:
        yield Broken(f"max_{field} = {most:g}: it has {statistics.median(known):.4g}")


def _comparable(hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    planned = {bool(host.comparable_plan_us) for host in hosts if host}
    if not all(host and host.comparable_us for host in hosts):
        yield Broken(f"slower_host: {NOT_WRITTEN}", unknown=True)
    elif len(planned) > 1:
        yield Broken("slower_host: some of its rows have a plan and others have none", unknown=True)


def _never_waits(hosts: Sequence[HostTime | None]) -> Iterator[Broken]:
    waiting = [host for host in hosts if host and host.synchronisations]
    if waiting:
        yield Broken(f"no_sync: it waits for the GPU, {', '.join(host_time.places(waiting[-1], SYNCHRONISATION))}")
    elif any(host is None or host.synchronisations is None for host in hosts):
        yield Broken(f"no_sync: {NOT_WRITTEN}", unknown=True)


def _rival(case: ComparedCase, rival: Rival) -> Iterator[Broken]:
    """Compare with the other backend in the same processes; a ratio must be above the limit with confidence."""
    asked = f"max_vs_backend = {rival.ratio:g} of {rival.backend}"
    if case.after[0].identity.backend == rival.backend:
        return
    pairs = [(other, row) for run, row in case.head if (other := _of_backend(rival.backend, row, run.rows))]
    if not pairs:
        yield Broken(f"{asked}: this run has no case of that backend with its shape", unknown=True)
        return
    [effect] = effects.effects([_beside(pairs)])
    if effect.bound(-1) > math.log(rival.ratio):
        yield Broken(f"{asked}: it takes {math.exp(effect.change):.3f} of its {effect.seen.domain}")


def _of_backend(backend: str, row: Row, rows: Iterable[Row]) -> Row | None:
    others = (other for other in rows if other.identity.backend == backend)
    return next((other for other in others if _shape(other) == _shape(row)), None)


def _shape(row: Row) -> tuple[str | None, ...]:
    return row.identity.routine, row.identity.shape, row.identity.device


def _beside(pairs: Sequence[tuple[Row, Row]]) -> Replicates:
    return effects.replicates([rival for rival, _ in pairs], [row for _, row in pairs], paired=True)[0]
