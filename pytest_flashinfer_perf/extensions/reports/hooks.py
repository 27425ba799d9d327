"""The hook of reports, for other extensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Run
    from pytest_flashinfer_perf.extensions.reports.sections import Section


@pytest.hookspec
def pytest_perf_sections(runs: Sequence[Run]) -> Iterable[Section]:  # type: ignore[empty-body]
    """Sections of a report of these runs, oldest first, in whatever format it is written."""
