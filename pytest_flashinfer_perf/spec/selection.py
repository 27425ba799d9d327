"""Select cases by a glob over `routine/id` or by flags."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pytest_flashinfer_perf.config.quarantine import Quarantined
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case, backend_named, flags_of_family, routine_named
from pytest_flashinfer_perf.spec.params import Value
from pytest_flashinfer_perf.spec.routine import AnyRoutine

Routines = Mapping[str, AnyRoutine]


class Selection(NamedTuple):
    """The values of fields and the backends in a line of flags; all backends if it names none."""

    backends: tuple[str, ...]
    fields: dict[str, Value]

    def holds(self, case: Case) -> bool:
        if self.backends and case.backend_name not in self.backends:
            return False
        return all(getattr(case.params, name) == value for name, value in self.fields.items())


def parse(line: str, routine: AnyRoutine, routines: Routines) -> Selection | None:
    """Parse the line for this routine, None if it names another one."""
    known = {**routines, routine.name: routine}
    general = flags.parser()
    general.add_argument("--routine", "-R", default=routine.name)
    general.add_argument("--api", default=routine.name)
    general.add_argument("--backends", nargs="+", default=[])
    given, rest = general.parse_known_args(flags.split(line))
    if given.api != routine.name or routine_named(given.routine, known) is not routine:
        return None
    backends = tuple(backend_named(name, routine) for name in given.backends)
    return Selection(backends, flags.read_some(routine.params, rest, flags_of_family(routine, known)))


def selects(line: str, case: Case, routines: Routines) -> bool:
    if not line.startswith("-"):
        return fnmatch.fnmatchcase(f"{case.routine.name}/{case.id}", line)
    selection = parse(line, case.routine, routines)
    return selection is not None and selection.holds(case)


def selects_no_routine(line: str, routines: Routines) -> bool:
    """Whether no routine is selected; raises ParamError for flags that cannot be parsed."""
    if line.startswith("-"):
        return all(parse(line, routine, routines) is None for routine in routines.values())
    return not any(fnmatch.fnmatchcase(name, line.partition("/")[0]) for name in routines)


def quarantined(case: Case, entries: Iterable[Quarantined], routines: Routines) -> Quarantined | None:
    return next((entry for entry in entries if selects(entry.which, case, routines)), None)
