"""Run searches and single cases as tests, which are skipped, fail with their findings, or pass with a report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import (
    SETTINGS,
    CaseRun,
    Checking,
    Device,
    FlashinferPerfError,
    Settings,
    capability,
    lines,
    one_case,
    printing,
    provenance,
    stash,
    test_of,
)
from pytest_flashinfer_perf.extensions.fuzz import findings
from pytest_flashinfer_perf.extensions.fuzz.child import ChildError, ChildSetup, ExampleRunner
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import NAME, Fuzzing
from pytest_flashinfer_perf.extensions.fuzz.shape_search import NothingLaunchedError, Search, SearchRun
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case, CaseOfTest, quarantined
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.routine import Backend

PACKAGE = __name__.partition(".")[0]


class FindingFile(pytest.File):
    """The case of a finding, which is launched and checked again."""

    def collect(self) -> list[pytest.Function]:
        try:
            [case] = lines.cases_of(findings.line_of(self.path), all_routines())
        except (ValueError, FlashinferPerfError) as error:
            raise self.CollectError(printing.safe_lines(f"{self.path}: {error}")) from error
        return [test_of(self, lines.Entry(f"{case.routine.name}[{case.id}]", case=case))]


def run(case: CaseOfTest, item: pytest.Item) -> CaseRun:
    settings, device = item.config.stash[SETTINGS], item.config.stash[stash.DEVICE]
    if isinstance(case, Case):
        attempt(case, item, settings, device)
    elif isinstance(case, Search):
        search(case, item, settings, device)
    return CaseRun()


def search(shapes: Search, item: pytest.Item, settings: Settings, device: Device) -> None:
    """Search, and put the report on the test; a finding fails it."""
    missing = capability.missing(shapes.backend.requires, device)
    if missing:
        pytest.skip(missing)
    fuzzing = Fuzzing.of(item.config)
    with closing(ExampleRunner(_setup(item, shapes.backend, settings))) as child:
        search_run = SearchRun(shapes, fuzzing, settings, device, child)
        try:
            steady = search_run.run()
        except (ChildError, NothingLaunchedError, ParamError) as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
    versions = {"device": device.name, **provenance.versions()}
    described = (_described(item, *example, versions, steady=steady) for example in search_run.findings.values())
    written = [(finding, finding.write(fuzzing.findings)) for finding in described]
    report = search_run.report({finding.kind: path for finding, path in written})
    item.stash[stash.PARTS] = {NAME: report}
    if written:
        messages = ["\n".join((*finding.lines, f"pytest {path}")) for finding, path in written]
        pytest.fail("\n\n".join(messages), pytrace=False)


def attempt(case: Case, item: pytest.Item, settings: Settings, device: Device) -> None:
    """Launch one case in a child process, as a search does, and check it."""
    quarantine = quarantined(case, settings.quarantine, all_routines())
    reason = quarantine.sentence if quarantine else one_case.obstacle(case, device)
    if reason:
        pytest.skip(reason)
    with closing(ExampleRunner(_setup(item, case.backend, settings))) as child:
        try:
            outcome = child.attempt(case.words)
        except ChildError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None
    if outcome.kind in ("skipped", "refused"):
        pytest.skip(outcome.sentence)
    if outcome.is_finding:
        pytest.fail("\n".join(_described(item, case, outcome, {}, steady=True).lines), pytrace=False)


def _described(
    item: pytest.Item, case: Case, outcome: findings.Outcome, versions: Mapping[str, Any], *, steady: bool
) -> findings.Finding:
    upstream = item.ihook.pytest_perf_repeat(case=case)
    return findings.describe(case, outcome, versions, steady=steady, upstream=upstream)


def _setup(item: pytest.Item, backend: Backend[Any, Any], settings: Settings) -> ChildSetup:
    """The child's setup; for a user's backend with its module, the test's, and each conftest.py."""
    declared_in = backend.build.__module__
    own = () if declared_in.partition(".")[0] == PACKAGE else tuple(dict.fromkeys(_modules(item, declared_in)))
    checking = Checking(refcheck="only", tolerances=settings.checking.tolerances)
    return ChildSetup(own, settings.device, settings.measuring, checking)


def _modules(item: pytest.Item, declared_in: str) -> Iterator[tuple[str, str]]:
    loaded: list[Any] = [plugin for _, plugin in item.config.pluginmanager.list_name_plugin()]
    conftests = [plugin for plugin in loaded if Path(getattr(plugin, "__file__", None) or "").name == "conftest.py"]
    for module in (*conftests, sys.modules.get(declared_in), getattr(item, "module", None)):
        if module is not None and getattr(module, "__file__", None):
            yield module.__name__, str(module.__file__)
