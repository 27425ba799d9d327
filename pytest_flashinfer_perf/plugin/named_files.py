"""Files that are named as arguments: findings and testlists."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_flashinfer_perf.running.stash import SETTINGS


def findings_in(path: Path, parent: pytest.Collector) -> list[pytest.Collector]:
    from pytest_flashinfer_perf.fuzz import findings

    if not findings.is_finding(path):
        return []
    from pytest_flashinfer_perf.plugin.items import FindingFile

    return [FindingFile.from_parent(parent, path=path)]


def is_testlist(path: Path, config: pytest.Config) -> bool:
    if any(path.samefile(config.invocation_params.dir / name) for name in config.stash[SETTINGS].testlists):
        return True
    if path.suffix != ".txt":
        return False
    from pytest_flashinfer_perf.flashinfer_benchmark import testlist

    return testlist.is_testlist(path)
