"""What `flashinfer_benchmark.py` prints of each case, for the scripts that read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.running import unmeasured

Row = Mapping[str, Any]
WIDTH = 15
RATES = (("tflops", "TFLOPs/sec"), ("tb_per_sec", "TB/sec"))


class UpstreamLines:
    """A plugin of `flashinfer-perf run`: lines as soon as there is something to say."""

    def __init__(self) -> None:
        self._shape: tuple[Any, ...] = ()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.getplugin("terminalreporter")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lines = list(self._lines(report))
        if lines:
            self._terminal.ensure_newline()
        for line in lines:
            self._terminal.write_line(line)

    def _lines(self, report: pytest.TestReport) -> Iterator[str]:
        name = report.nodeid.partition("::")[2]
        if hasattr(report, "perf_row"):
            yield from self._measured(json.loads(report.perf_row))
        elif report.failed:
            yield f"[ERROR] Error running test: {name}"
            said = unmeasured.reason(report).strip().partition("\n")[0]
            yield f"[ERROR] Error: {said}"
        elif report.skipped and hasattr(report, "perf_unmeasured"):
            yield f"[INFO] {name}: {json.loads(report.perf_unmeasured)['reason']}. Skipping."

    def _measured(self, row: Row) -> Iterator[str]:
        """What a shape's backends have in common is said once, before the first of them."""
        shape = (row.get("routine"), row.get("shape"))
        if shape != self._shape and row.get("verbose"):
            yield from _about(row)
        self._shape = shape
        yield performance(row)


def _about(row: Row) -> Iterator[str]:
    versions = provenance.versions()
    yield f"[INFO] Running test{''.join(word[:1].upper() + word[1:] for word in row['routine'].split('_'))}"
    yield f"[INFO] FlashInfer version: {versions['flashinfer']}"
    if row["verbose"] > 1:
        yield f"[VVERBOSE] gpu_name = {row['device_name'].replace(' ', '_')!r}"
    yield f"[INFO] To reproduce this test case, run the following command: {row['repro_upstream'] or row['repro']}"
    yield from _lengths(row)
    for described in row.get("inputs", ()):
        yield f"[VVERBOSE] {described}"


def _lengths(row: Row) -> Iterator[str]:
    if "avg_actual_kv_len" in row:
        yield f"[VERBOSE] Average actual qo seq len: {row['avg_actual_seq_len']}"
        yield f"[VERBOSE] Average actual kv seq len: {row['avg_actual_kv_len']}"
    elif "avg_actual_seq_len" in row:
        yield f"[VERBOSE] Average actual seq len: {row['avg_actual_seq_len']}"


def performance(row: Row) -> str:
    """Nobody says how much work a solution of a data set does: there are no rates of it."""
    times = f"median time {1e3 * row['median']:.3f} ms; std {1e3 * row['std']:.3f} ms"
    rates = [f"achieved {name} {row[name]:.3f} {unit}" for name, unit in RATES if row[name] is not None]
    return f"[PERF] {row.get('backend') or row['case']:<{WIDTH}}:: {'; '.join([times, *rates])}"
