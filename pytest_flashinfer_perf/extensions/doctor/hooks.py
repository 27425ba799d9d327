"""The hook of `doctor`, for other extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Device


@pytest.hookspec
def pytest_perf_examined(device: Device) -> Mapping[str, str | None]:  # type: ignore[empty-body]
    """What an extension measures on this device: None by its name, or why it cannot."""
