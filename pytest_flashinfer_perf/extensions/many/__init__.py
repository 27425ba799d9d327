"""Many GPUs of one machine: the workers of pytest-xdist, one for each, replaced when a case ends one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import stash
from pytest_flashinfer_perf.extensions.many import gpus
from pytest_flashinfer_perf.extensions.many.gpus import GPU_WORKERS

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.many.workers import Controller, Worker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(GPU_WORKERS, "pytest -n auto starts one worker for each visible GPU", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = stash.is_worker(config)
    has_workers = getattr(config.option, "tx", None) or getattr(config.option, "dist", "no") != "no"
    if is_worker or (has_workers and config.pluginmanager.hasplugin("xdist")):
        from pytest_flashinfer_perf.extensions.many import workers

        one: Worker | Controller = workers.Worker(config) if is_worker else workers.Controller(config)
        config.pluginmanager.register(one, "flashinfer-perf-many")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return gpus.number(config)
