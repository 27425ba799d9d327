"""`flashinfer-perf list`: routines, and the names of backends, models and flags that a command line takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.cli.commands import parser_of
from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.rows.formatting import wrapped
from pytest_flashinfer_perf.spec.case import UnknownRoutineError
from pytest_flashinfer_perf.spec.params import Field, fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine

EXAMPLE = """examples:
  flashinfer-perf list
  flashinfer-perf list mm_fp8
  flashinfer-perf list decode
"""


def main(arguments: Sequence[str]) -> int:
    description = "List routines with their backends, tiers, models and flags. For a named one, explain each flag."
    parser = parser_of("list", description, EXAMPLE)
    parser.set_defaults(list=None)  # where no extension has a list of its own
    instead = loading.joined(loading.manager().hook.pytest_perf_lists())
    for one in instead:
        parser.add_argument(f"--{one.name}", action="store_const", dest="list", const=one, help=one.help)
    parser.add_argument("routine", nargs="?", default="", help="Name, or part of it. Default: all.")
    options = parser.parse_args(arguments)
    if options.list is not None:
        return int(options.list([options.routine]))
    return _routines(options.routine)


def _routines(name: str) -> int:
    routines = all_routines()
    similar = [routine for each, routine in routines.items() if name.lower() in each.lower()]
    matching = [routines[name]] if name in routines else similar
    if not matching:
        raise UnknownRoutineError(name, unknown(name, sorted(routines)))
    shown = (line for routine in matching for line in _described(routine, whole=bool(name)))
    show([*shown, *(() if name else _titled("models", _models(matching), indent=0))])
    return 0


def _described(routine: AnyRoutine, *, whole: bool) -> Iterator[str]:
    yield f"{routine.name} ({routine.family})"
    yield from _titled("backends", routine.backends)
    yield from _titled("tiers", (f"{name} ({len(list(shapes()))})" for name, shapes in routine.tiers.items()))
    if whole:
        yield from _titled("models", _models([routine]))
        yield "  flags"
        for field in fields_of(routine.params):
            yield from _explained(field)
    else:
        yield from _titled("flags", (f"--{field.spellings[0]}" for field in fields_of(routine.params)))
    yield ""


def _models(routines: Iterable[AnyRoutine]) -> list[str]:
    return sorted({model for routine in routines if routine.presets for model in routine.presets.layers})


def _titled(title: str, names: Iterable[str], indent: int = 2) -> Iterator[str]:
    text = f"{' ' * indent}{title:<10}{' '.join(names) or 'none'}"
    yield from wrapped(text, indent + 10)


def _explained(field: Field) -> Iterator[str]:
    names = ", ".join(f"--{name}" for name in field.spellings)
    choices = f": {', '.join(field.flag.choices)}" if field.flag.choices else ""
    text = f"    {names:<28}{field.flag.help}{choices} ({_default(field)})"
    yield from wrapped(text, 32)


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if field.flag.same_as:
        return f"as --{field.flag.same_as}"
    return "off" if field.default in (None, False) else str(field.default)
