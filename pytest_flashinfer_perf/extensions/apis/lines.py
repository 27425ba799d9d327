"""A line of flags of an API: `--api NAME` and its axes and arguments."""

from __future__ import annotations

from pytest_flashinfer_perf.extensions.apis.routine import ApiRoutine
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case, FlagLine, MissingCaseError
from pytest_flashinfer_perf.spec.params import ParamError, fields_of


class ApiLine(FlagLine):
    """Which backends an API has depends on the FlashInfer that is installed."""

    def case(self, backend: str) -> Case:
        try:
            return super().case(backend)
        except ParamError as error:
            raise MissingCaseError(str(error)) from None


def parse(api: ApiRoutine, words: list[str]) -> FlagLine:
    spellings = {spelling for field in fields_of(api.params) for spelling in field.spellings}
    return ApiLine(*cases.parse_of(api, words, spellings))
