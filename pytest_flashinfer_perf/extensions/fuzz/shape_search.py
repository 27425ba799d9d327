"""A search: hypothesis draws shapes for one backend here, and a child process launches and checks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any
from unittest import SkipTest

import hypothesis
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.errors import Flaky, Unsatisfiable

from pytest_flashinfer_perf import strategies_for
from pytest_flashinfer_perf.api import Device, FlashinferPerfError, Settings, one_case
from pytest_flashinfer_perf.extensions.fuzz import profiles
from pytest_flashinfer_perf.extensions.fuzz.child import ExampleRunner
from pytest_flashinfer_perf.extensions.fuzz.findings import FINDINGS, Outcome
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import Fuzzing
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case, parse_selector, quarantined
from pytest_flashinfer_perf.spec.params import Params
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Backend, Shape

profiles.register()

SEEDS = st.integers(0, 2**32 - 1)

# An example's memory in addition to that of the routine's smallest smoke shape.
BYTES_CPU, BYTES_GPU = 32 << 20, 4 << 30


@dataclass(frozen=True)
class Search:
    """A search of one routine with one backend, which is one test."""

    routine: AnyRoutine
    backend_name: str

    @property
    def id(self) -> str:
        return f"fuzz-{self.backend_name}"

    @property
    def backend(self) -> Backend[Any, Any]:
        return self.routine.backends[self.backend_name]

    @property
    def marks(self) -> dict[str, str]:
        return {"routine": self.routine.name, "backend": self.backend_name}

    @property
    def keywords(self) -> set[str]:
        return self.routine.keywords(self.backend_name)

    def case(self, params: Params, seed: int) -> Case:
        return Case(self.routine, Shape(params), self.backend_name, seed)


class FindingError(FlashinferPerfError):
    """Raised by the property; hypothesis takes each subclass for a separate failure and shrinks it separately."""


ERRORS = {kind: type(f"{kind.title()}Error", (FindingError,), {}) for kind in FINDINGS}


class NothingLaunchedError(FlashinferPerfError):
    """No example could be launched, so that the search has no result."""


class SearchRun:
    """Runs one search and collects its findings."""

    def __init__(
        self,
        search: Search,
        fuzzing: Fuzzing,
        settings: Settings,
        device: Device,
        child: ExampleRunner,
    ) -> None:
        self.tally, self.findings = Tally(), dict[str, tuple[Case, Outcome]]()
        self.stopped = False
        self._search, self._fuzzing, self._device, self._child = search, fuzzing, device, child
        self._quarantine = settings.quarantine
        self._started = monotonic()
        self._profile = profiles.chosen()
        smoke = search.routine.tiers.get("smoke", tuple)()
        self._least = min((search.routine.footprint(shape.params) for shape in smoke), default=0)

    def run(self) -> bool:
        """Search; returns whether every finding was reproducible."""
        try:
            with suppress(SkipTest):
                self._property()()
        except Unsatisfiable:
            raise NothingLaunchedError(self._why_not()) from None
        except Exception as error:
            if not self.findings:
                raise
            return not isinstance(error, Flaky)
        if not self.tally.checked:
            raise NothingLaunchedError(self._why_not())
        return True

    def report(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """A row of the table."""
        return {
            **self._search.marks,
            "wanted": self._profile.max_examples,
            "checked": self.tally.checked,
            **{name: dict(getattr(self.tally, name)) for name in ("skipped", "refused", "quarantined")},
            "stopped": self.stopped,
            "findings": {kind: str(path) for kind, path in files.items()},
        }

    def _property(self) -> Callable[[], None]:
        def holds(params: Params, seed: int) -> None:
            self._try(self._search.case(params, seed))

        # Part of what hypothesis keys its database by: each search has examples of its own.
        holds.__name__ = f"{self._search.routine.name}_{self._search.backend_name}".replace("-", "_")
        drawn = hypothesis.given(params=self._params(), seed=SEEDS)(holds)
        # The phase `explain` would launch as many examples again as shrinking does.
        phases = [phase for phase in self._profile.phases if phase is not Phase.explain]
        run: Callable[[], None] = hypothesis.settings(self._profile, phases=phases)(drawn)
        return run

    def _params(self) -> st.SearchStrategy[Params]:
        routine, backend = self._search.routine, self._search.backend_name
        lines = self._fuzzing.flags
        selections = [selection for line in lines if (selection := parse_selector(line, routine, all_routines()))]
        fixed = [one.fields for one in selections if backend in (one.backends or (backend,))]
        drawn = [strategies_for(routine, **fields) for fields in fixed or [{}]]
        return st.one_of(drawn).filter(self._may_be_launched)

    def _may_be_launched(self, params: Params) -> bool:
        case = self._search.case(params, 0)
        quarantine = quarantined(case, self._quarantine, all_routines())
        if quarantine:
            self.tally.quarantined[quarantine.sentence] += 1
            return False
        most = BYTES_GPU if self._device.is_gpu else BYTES_CPU
        large = case.routine.footprint(params) - self._least > most
        reason = one_case.obstacle(case, self._device) or (f"beyond the search's {most >> 20} MiB" if large else None)
        if reason:
            self.tally.skipped[reason] += 1
        return not reason

    def _try(self, case: Case) -> None:
        spent = monotonic() - self._started
        if self._fuzzing.seconds is not None and spent > self._fuzzing.seconds and not self.findings:
            self.stopped = True
            raise SkipTest("time is up")  # ends all examples of hypothesis
        outcome = self._child.attempt(case.words)
        self.tally.add(outcome)
        if outcome.kind in ("skipped", "refused"):
            hypothesis.reject()
        if outcome.is_finding:
            self.findings[outcome.kind] = (case, outcome)
            raise ERRORS[outcome.kind](outcome.sentence)

    def _why_not(self) -> str:
        reasons = self.tally.skipped + self.tally.refused + self.tally.quarantined
        counts = [f"{count} x {reason}" for reason, count in reasons.most_common(5)]
        lines = counts or ["no valid shape has these flags"]
        name, backend = self._search.routine.name, self._search.backend_name
        return "\n  ".join((f"no example of {name} was launched and checked with {backend}:", *lines))


@dataclass
class Tally:
    """How many examples were right, and the reasons why others were skipped or refused."""

    checked: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.checked += outcome.kind == "right"
        if outcome.kind in ("skipped", "refused"):
            (self.skipped if outcome.kind == "skipped" else self.refused)[outcome.sentence] += 1
