"""Support for pytest-benchmark's storage in Elasticsearch, which keeps a document for each row."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import SCHEMA_KEY
from pytest_flashinfer_perf.session.journal import json_of


def copies(config: pytest.Config) -> bool:
    return str(config.getoption("benchmark_storage", "")).startswith("elasticsearch")


class SmallDocuments:
    """pytest-benchmark asks for the file's content first, where there is one, and then for the storage's."""

    def __init__(self, config: pytest.Config) -> None:
        self._for_storage = json_of(config) is None

    @pytest.hookimpl(optionalhook=True, wrapper=True, tryfirst=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> Generator[None, object, object]:
        done = yield
        if self._for_storage and SCHEMA_KEY in output_json:
            output_json[SCHEMA_KEY] = run_file.brief(output_json[SCHEMA_KEY])
        self._for_storage = True
        return done
