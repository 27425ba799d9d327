"""The usable APIs of the installed FlashInfer, by their names, and lines of flags that name one."""

from __future__ import annotations

import difflib
import functools
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.extensions.apis.templates import installed
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case, FlagLine, MissingCaseError
from pytest_flashinfer_perf.spec.params import ParamError, fields_of

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.apis.routine import ApiRoutine


@functools.cache
def all_apis() -> dict[str, ApiRoutine]:
    """The usable APIs of the installed FlashInfer by name; empty if it is not installed."""
    from pytest_flashinfer_perf.extensions.apis import routine

    return {api.name: routine.of(api) for api in installed().usable}


def api_named(name: str) -> ApiRoutine:
    routines = all_apis()
    if name not in routines:
        raise ParamError(f"api: {unknown(name)}")
    return routines[name]


def unknown(name: str) -> str:
    """There are too many to list each in a sentence."""
    close = difflib.get_close_matches(name, [api.name for api in installed().usable], n=3)
    hint = f", did you mean {' or '.join(close)}?" if close else ""
    return f"unknown name {name!r}{hint}: `flashinfer-perf list --api` has all"


class ApiLine(FlagLine):
    """Which backends an API has depends on the FlashInfer that is installed."""

    def case(self, backend: str) -> Case:
        try:
            return super().case(backend)
        except ParamError as error:
            raise MissingCaseError(str(error)) from None


def line(words: list[str]) -> FlagLine:
    """`--api NAME`, and its axes and arguments."""
    all_apis()  # by which `--api` is known for a flag that names a case
    api = api_named(cases.name_in(words))
    spellings = {spelling for field in fields_of(api.params) for spelling in field.spellings}
    return ApiLine(*cases.parse_of(api, words, spellings))
