"""A line of `flashinfer_benchmark.py`: its routines by its names, and the backends that it measures by default."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_flashinfer_perf.extensions.apis import upstream_names
from pytest_flashinfer_perf.extensions.apis.lookup import ApiLine, api_named
from pytest_flashinfer_perf.extensions.testlists import upstream
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case, FlagLine, MissingCaseError
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import AnyRoutine


class ScriptLine(FlagLine):
    """A line of a routine that is one here."""

    @property
    def usual(self) -> list[str]:
        """The backends that the script measures where a line names none; all for a routine that it does not have."""
        name, family = self.routine.name, self.routine.family
        usual = upstream.DEFAULT_BACKEND.get(name, upstream.DEFAULT_BACKEND.get(family, ""))
        runs = {usual} if usual in self.routine.backends else upstream.RUNS.get(name, self.routine.backends)
        return [backend for backend in super().usual if backend in runs]

    def case(self, backend: str) -> Case:
        try:
            return super().case(backend)
        except ParamError as error:
            raise MissingCaseError(str(error)) if backend in upstream.BACKENDS else error from None


def parse(words: list[str], routines: Mapping[str, AnyRoutine]) -> FlagLine | None:
    """Parse a line of the script; None for a routine that the script does not have either."""
    name = cases.name_in(words)
    if name in routines:
        return ScriptLine(*cases.parse(words, dict(routines)))
    if name in upstream.ELSEWHERE:
        raise MissingCaseError(upstream.ELSEWHERE[name].format(name))
    if not upstream.may_be_api(name):
        return None
    described = upstream_names.api_of(name, words)
    api = api_named(described.name)
    return ApiLine(*cases.parse_of(api, words, (), lambda rest: upstream_names.translated(name, described, rest)))
