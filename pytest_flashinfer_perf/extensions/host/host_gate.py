"""Host time in the gate: its limits, and its change, which the time on the GPU does not show."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pytest_flashinfer_perf.api import OtherTime, Quantity, Row, load, match, share, thresholds
from pytest_flashinfer_perf.extensions.host.host_time import HostTime, of, places

NOT_WRITTEN = "its rows do not say what it asks of the host"


@dataclass(frozen=True)
class HostLimits:
    """The limits of `[thresholds]` for host time, which has none unless the settings file sets one."""

    slower_host: Annotated[float | None, share] = None
    max_host_us: Annotated[float | None, thresholds.number] = None
    max_plan_us: Annotated[float | None, thresholds.number] = None
    max_launches: Annotated[float | None, thresholds.number] = None
    no_sync: Annotated[bool, thresholds.switch] = False


def broken(case: match.ComparedCase, limits: HostLimits) -> Iterator[thresholds.Broken]:
    """The limits that this run does not keep."""
    hosts = [of(row) for row in case.after]
    for field in ("host_us", "plan_us", "launches"):
        most = getattr(limits, f"max_{field}")
        if most is not None:
            yield from _at_most(field, most, hosts)
    if limits.no_sync:
        yield from _never_waits(hosts)
    if limits.slower_host is not None:
        yield from _comparable([of(row) for row in case.rows])


def _at_most(field: str, most: float, hosts: Sequence[HostTime | None]) -> Iterator[thresholds.Broken]:
    """A case for which nothing is planned breaks no limit of plans."""
    values = [getattr(host, field) for host in hosts if host]
    numbers = [value for value in values if value is not None]
    if len(values) < len(hosts) or (len(numbers) < len(values) and field != "plan_us"):
        yield thresholds.Broken(f"max_{field} = {most:g}: {NOT_WRITTEN}", unknown=True)
    elif numbers and statistics.median(numbers) > most:
        yield thresholds.Broken(f"max_{field} = {most:g}: it has {statistics.median(numbers):.4g}")


def _comparable(hosts: Sequence[HostTime | None]) -> Iterator[thresholds.Broken]:
    planned = {bool(host.comparable_plan_us) for host in hosts if host}
    if not all(host and host.comparable_us for host in hosts):
        yield thresholds.Broken(f"slower_host: {NOT_WRITTEN}", unknown=True)
    elif len(planned) > 1:
        yield thresholds.Broken("slower_host: some of its rows have a plan and others have none", unknown=True)


def _never_waits(hosts: Sequence[HostTime | None]) -> Iterator[thresholds.Broken]:
    waiting = [host for host in hosts if host and host.synchronisations]
    if waiting:
        yield thresholds.Broken(f"no_sync: it waits for the GPU, {', '.join(places(waiting[-1]))}")
    elif any(host is None or host.synchronisations is None for host in hosts):
        yield thresholds.Broken(f"no_sync: {NOT_WRITTEN}", unknown=True)


# The change of both times, the fastest of each in seconds of a core of one speed: others take up to twice as long for
# reasons of the machine's own. And what a call asks of the host beside them.


def _enqueued_s(row: Row) -> float | None:
    return _seconds(host.comparable_us) if (host := of(row)) else None


def _planned_s(row: Row) -> float | None:
    return _seconds(host.comparable_plan_us) if (host := of(row)) else None


def _seconds(us: float | None) -> float | None:
    return None if us is None else 1e-6 * us


def contention(row: Row) -> load.Contention | None:
    return host.contention if (host := of(row)) else None


def more_of_the_host(case: match.ComparedCase) -> Iterator[str]:
    """Allocations and synchronisations that became more, with the lines of Python that wait."""
    before, after = ([host for row in side if (host := of(row))] for side in (case.before, case.after))
    for field in ("allocations", "synchronisations"):
        was, now = ([count for host in side if (count := getattr(host, field)) is not None] for side in (before, after))
        if was and now and min(now) > max(was):
            lines = f": {', '.join(places(after[-1]))}" if field == "synchronisations" else ""
            yield f"{field} of a call {max(was)} -> {min(now)}{lines}"


QUANTITY = Quantity(
    limits=HostLimits,
    slower="slower_host",
    where="on the host",
    figures=(
        OtherTime("host", "the time to enqueue it", _enqueued_s, noise=0.07),
        OtherTime("plan", "the time to plan it", _planned_s, noise=0.15),
    ),
    contention=contention,
    broken=broken,
    remarks=more_of_the_host,
)
