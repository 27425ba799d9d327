"""Whether FlashInfer ran another of its implementations, as CuTe DSL's norms or the older ones in CUDA, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate.match import ComparedCase
from pytest_flashinfer_perf.machine import implementations
from pytest_flashinfer_perf.machine.implementations import UNKNOWN
from pytest_flashinfer_perf.rows.row import Row


@dataclass(frozen=True)
class Used:
    """What the rows of one side ran, None if that is not known of all of them; and by what FlashInfer chose."""

    names: tuple[str, ...] | None
    unmet: Mapping[str, str]
    switches: Mapping[str, str]

    def without(self, other: Used) -> list[str]:
        """The implementations that this side ran and the other one did not."""
        return [name for name in self.names or () if name not in (other.names or ())]

    def missing(self, names: Sequence[str]) -> Iterator[str]:
        """Which packages of these implementations this side lacks."""
        needed = [implementations.PACKAGE[name] for name in names if name in implementations.PACKAGE]
        for package, why in self.unmet.items():
            if any(implementations.is_of(package, name) for name in needed):
                yield f"{package} {why}"


def remarks(case: ComparedCase) -> Iterator[str]:
    before, after = _used(case.before), _used(case.after)
    if before.names is None or after.names is None:
        return
    gone, come = before.without(after), after.without(before)
    if not (gone or come) or UNKNOWN in (*gone, *come):
        return
    seen = f"now the {_all(come)} implementation" if come else f"no longer the {_all(gone)} implementation"
    earlier = (f"in the baseline {why}" for why in before.missing(come))
    reasons = ", ".join([*after.missing(gone), *earlier, *_switched(before.switches, after.switches)])
    yield f"{seen}: {reasons}" if reasons else seen


def _used(rows: Sequence[Row]) -> Used:
    sides, known = [row.library for row in rows], [row.trace.kernels for row in rows]
    names = implementations.of_kernels(kernel for kernels in known for kernel in kernels or ())
    unmet = {package: why for one in sides for package, why in (one.unmet or {}).items()}
    switches = {name: value for one in sides for name, value in (one.switches or {}).items()}
    return Used(names if known and None not in known else None, unmet, switches)


def _all(names: Sequence[str]) -> str:
    return " and ".join(names)


def _switched(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    yield from (f"{name}={value} is set" for name, value in after.items() if before.get(name) != value)
    yield from (f"{name} is no longer set" for name in before if name not in after)
