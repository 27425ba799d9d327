"""vLLM's decode benchmark: its routine, its function and its CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options, stash

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Row
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

__tracebackhide__ = False  # its lines are a backend's
USES = ("routines",)  # requests of attention and its reference
CSV = option(
    "--perf-vllm-csv",
    child=Child.NONE,
    writes="any.csv",
    metavar="DIR",
    type=options.FOLDER,
    help="Write the results of vllm_decode to a CSV file in DIR, as vLLM's decode benchmark does.",
)
NOTHING = f"{CSV.name}: nothing written, no case of vllm_decode was measured as trtllm and as baseline"


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.FILES: (CSV,)}


def pytest_perf_routines() -> Iterable[AnyRoutine]:
    from pytest_flashinfer_perf.extensions.vllm.vllm_decode import vllm_decode

    return (vllm_decode,)


def pytest_perf_terminal(rows: Sequence[Row]) -> Iterable[str]:
    from pytest_flashinfer_perf.extensions.vllm import table

    return table.lines(rows)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the CSV, where it is asked for. One without a line would look like a run."""
    config = session.config
    folder = config.getoption(CSV.dest)
    if folder is None or config.option.collectonly or stash.is_worker(config):
        return
    from pytest_flashinfer_perf.api import BOARD, usage
    from pytest_flashinfer_perf.extensions.vllm import table

    board = config.stash[BOARD]
    try:
        path = table.write_csv(board.rows, Path(folder), datetime.now().astimezone())
    except OSError as error:
        board.notes.append(usage.not_written(session, CSV.name, error))
        return
    board.notes.append(f"wrote {path}" if path else NOTHING)
    if path is None and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
