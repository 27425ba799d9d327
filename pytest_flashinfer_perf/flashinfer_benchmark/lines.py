"""Read a line of flags: of a routine, of an API, or of upstream's routine that is an API here."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_flashinfer_perf.apis import api_named
from pytest_flashinfer_perf.flashinfer_benchmark import upstream
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case, Line
from pytest_flashinfer_perf.spec.params import fields_of
from pytest_flashinfer_perf.spec.routine import AnyRoutine


def read(line: Iterable[str], routines: dict[str, AnyRoutine]) -> list[Case]:
    """A line's cases, a case per backend."""
    return parse(line, routines).cases()


def parse(line: Iterable[str], routines: dict[str, AnyRoutine]) -> Line:
    words = list(line)
    name = cases.name_in(words)
    if names_api(words):
        api = api_named(name)
        return cases.parse_of(api, words, _spellings(api))
    if name in routines or not upstream.may_be_api(name):
        return cases.parse(words, routines)
    return _translated(words, name)


def _translated(words: list[str], name: str) -> Line:
    """A line of upstream's routine that is an API here."""
    from pytest_flashinfer_perf.apis import upstream_names  # imports torch

    described = upstream_names.api_of(name, words)
    api = api_named(described.name)
    return cases.parse_of(api, words, (), lambda rest: upstream_names.translated(name, described, rest))


def names_api(words: Iterable[str]) -> bool:
    return any(word.partition("=")[0] == "--api" for word in words)


def _spellings(api: AnyRoutine) -> set[str]:
    return {spelling for field in fields_of(api.params) for spelling in field.spellings}
