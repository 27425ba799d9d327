"""CSV rows with the columns of `flashinfer_benchmark.py`, each once, followed by ours."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.usage import errors_of_use, not_written
from pytest_flashinfer_perf.files import append_whole, write_whole
from pytest_flashinfer_perf.flashinfer_benchmark import upstream_columns
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.running import reports
from pytest_flashinfer_perf.runs.formatting import counted
from pytest_flashinfer_perf.runs.row import Row

OURS = """
    case status spread sol_pct bound flops bytes instrument cold_l2 refcheck_worst_abs refcheck_worst_rel
    active_experts largest_load sm_ghz device_name gpu_uuid repro
""".split()  # noqa: SIM905 - one line for each kind
COLUMNS = (*upstream_columns.NAMES, *OURS)
ANSWERS = {"passed": True, "sampled": True, "wrong": False}


def columns(row: Row) -> dict[str, Any]:
    """The cells of a row, with times in milliseconds; None in columns that do not apply to its routine."""
    how, checked = row.provenance, row.check.refcheck or ""
    cells = {
        **row.params,
        **row.extra_info(),
        "median_time": 1e3 * row.median,
        "std_time": 1e3 * row.stats.stddev,
        "cold_l2_cache": how.cold_l2 != "none",
        "refcheck": checked in ANSWERS,
        "no_cuda_graph": not how.cuda_graph,
        "use_cupti": how.instrument == "cupti",
        "random_seed": row.setup.seed,
        "generate_repro_command": True,
        "repro_command": row.setup.repro_upstream,
        "use_nvfp4": not row.params["use_mxfp4"] if "use_mxfp4" in row.params else None,
        "is_var_seq": row.params.get("mla_is_var_seq"),
        "cute_dsl_impl": row.params.get("mla_cute_dsl_impl"),
        "refcheck_passed": ANSWERS.get(checked),
        **_tuned(row),
    }
    return {name: cells.get(name) for name in COLUMNS}


def _tuned(row: Row) -> dict[str, str]:
    """The autotuner's choice; empty for a row that was not tuned, as in upstream's CSV."""
    if not row.setup.autotuned or not row.setup.tactic:
        return {}
    winner, _, tactic = row.setup.tactic.partition(" ")
    return {"autotune_winner": winner, "autotune_tactic": tactic}


def _written(cells: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


class CsvFile:
    """Writes each row as soon as it is measured, so that a killed run leaves its rows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, str] = {}
        self._lost: OSError | None = None
        self._notes: list[str] = []

    def pytest_sessionstart(self) -> None:
        with errors_of_use(OSError):
            self._write()

    def _write(self) -> None:
        write_whole(self._path, "".join([_written(COLUMNS), *self._lines.values()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._lost is None:
            try:
                self._follow(report)
            except OSError as error:
                self._lost = error

    def _follow(self, report: pytest.TestReport) -> None:
        if reports.begins_attempt(report) and self._lines.pop(report.nodeid, None) is not None:
            self._write()
        row = reports.of(report).row
        if row:
            line = _written(columns(row).values())
            append_whole(self._path, line)
            self._lines[report.nodeid] = line

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._notes.append(f"wrote {counted(len(self._lines), 'row')} to {self._path}")
        if self._lost is not None:
            self._notes.append(not_written(session, "--perf-csv", self._lost))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write_lines(terminalreporter, self._notes)
