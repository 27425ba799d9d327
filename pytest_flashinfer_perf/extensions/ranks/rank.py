"""The plugin of pytest in a rank: join the group before the test is set up, and write down how the test ended.

The process group is the default one of torch.distributed: NCCL on GPUs, gloo on a CPU. It finds itself by a file, so
that no port is chosen, and is destroyed with the test.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from pytest_flashinfer_perf.api import stash, time_limit
from pytest_flashinfer_perf.extensions.ranks import joined, rank_environment

PR_SET_PDEATHSIG = 1
FOLDER = Path(os.environ.get(rank_environment.FOLDER, "."))


def pytest_configure() -> None:
    """End this rank together with the process that started it, or now if that has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != os.environ[rank_environment.STARTER]:
        sys.exit("the session that started this rank has ended")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The case's time counts from when all are here: one may import for seconds longer than another."""
    rank, _, size = os.environ[rank_environment.RANK].partition("/")
    (FOLDER / f"{rank}.begun").touch()
    with time_limit.not_counted():
        while len(list(FOLDER.glob("*.begun"))) < int(size):
            time.sleep(0.01)
    marker, case = item.get_closest_marker("perf_ranks"), stash.case_of(item)
    declared = getattr(case.routine, "collective", None) if case else None
    collective = marker.kwargs.get("collective") if marker else declared
    joined.join(int(rank), int(size), FOLDER / "store", item.config.stash[stash.DEVICE], collective)


class _Worst:
    report: pytest.TestReport | None = None
    at = 0.0


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The first phase that did not end well counts, or the call."""
    is_worse = not report.passed and (_Worst.report is None or _Worst.report.passed)
    if is_worse or report.when == "call":
        _Worst.report, _Worst.at = report, time.monotonic()


def pytest_runtest_logfinish(nodeid: str, location: object) -> None:  # noqa: ARG001 - a hook's arguments
    """A rank that failed ends at once: to take leave of a group whose others wait for it can take for ever."""
    if _Worst.report is not None and _Worst.report.passed:
        joined.leave()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _Worst.report is None:
        return
    hook = session.config.hook
    data = hook.pytest_report_to_serializable(config=session.config, report=_Worst.report)
    rank = os.environ[rank_environment.RANK].partition("/")[0]
    unfinished = FOLDER / f"{rank}.unfinished"
    unfinished.write_text(json.dumps({"report": data, "at": _Worst.at}))
    unfinished.rename(FOLDER / f"{rank}.json")
    if not _Worst.report.passed:
        sys.stdout.flush()
        os._exit(0)
