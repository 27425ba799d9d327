"""Print the lines that `flashinfer_benchmark.py` prints for each case, for scripts that parse them."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_flashinfer_perf.api import SETTINGS, Row, lines, printing, provenance, reports, run_file, stash
from pytest_flashinfer_perf.extensions.testlists import testlist
from pytest_flashinfer_perf.spec.case import FlagLine
from pytest_flashinfer_perf.spec.params import fields_of

WIDTH = 15
COUNTS = {"num_iters": 30, "dry_run_iters": 5}
DECODE = {"avg_actual_seq_len": "seq len"}
PREFILL = {"avg_actual_seq_len": "qo seq len", "avg_actual_kv_len": "kv seq len"}


class UpstreamLines:
    """A plugin of `flashinfer-perf run` that prints the lines of each test when it ends."""

    def __init__(self) -> None:
        self._shape: tuple[Any, ...] = ()
        self._line = ""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._terminal = config.pluginmanager.getplugin("terminalreporter")
        self._config = config

    @functools.cached_property
    def _entries(self) -> dict[str, lines.Entry]:
        """The lines by the name of each case, read again here: with xdist another process has collected them."""
        settings, flags = self._config.stash[SETTINGS], self._config.getoption("perf_flags")
        files = (self._config.invocation_params.dir / name for name in self._config.getoption("perf_testlist"))
        entries = [entry for file in files for entry in testlist.read(file, flags, settings.backends)]
        entries += [entry for line in settings.cases for entry in lines.read(line, "")]
        return {entry.identity.case: entry for entry in entries}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        printing.write_lines(self._terminal, self._lines(report))

    def _lines(self, report: pytest.TestReport) -> Iterator[str]:
        name, carried = report.nodeid.partition("::")[2], reports.of(report)
        result = carried.row or carried.unmeasured
        entry = self._entries.get(result.identity.case) if result else None
        if entry is not None:
            if entry.text != self._line and entry.parsed is not None and entry.parsed.general.verbose:
                yield f"[INFO] args = {_arguments(entry.parsed)}"  # of the line, before the first of its cases
            self._line = entry.text
        if carried.row:
            yield from self._measured(carried.row)
        elif report.failed:
            yield f"[ERROR] Error running test: {entry.text if entry else name}"
            error = reports.reason(report).strip().partition("\n")[0]
            yield f"[ERROR] Error: {error.removeprefix('Failed: ')}"
        elif report.skipped and carried.unmeasured:
            yield self._skipped(name, carried.unmeasured)

    def _skipped(self, name: str, left: run_file.Unmeasured) -> str:
        device = self._config.stash.get(stash.DEVICE, None)
        if "compute capability" not in left.reason or device is None or device.capability is None:
            return f"[INFO] {name}: {left.reason}. Skipping."
        backend, routine, here = left.identity.backend, left.identity.routine, ".".join(map(str, device.capability))
        return f"[WARNING] {backend} for routine {routine} is not supported on compute capability {here}. Skipping."

    def _measured(self, row: Row) -> Iterator[str]:
        """The line of a row; facts that the backends of a shape share are printed once, before the first of them."""
        shape = (row.identity.routine, row.identity.shape)
        if shape != self._shape and row.setup.verbose:
            yield from _about(row, row.setup.verbose)
        self._shape = shape
        yield performance(row)


def _arguments(line: FlagLine) -> argparse.Namespace:
    """All flags with their values, as the script prints them, with its counts where a line has none."""
    general = {name: COUNTS.get(name) if value is None else value for name, value in vars(line.general).items()}
    params = {f.spellings[0]: getattr(line.shape.params, f.name) for f in fields_of(line.routine.params)}
    return argparse.Namespace(**{**general, **params})


def _about(row: Row, verbose: int) -> Iterator[str]:
    versions, routine = provenance.versions(), row.identity.routine or ""
    yield f"[INFO] Running test{''.join(word[:1].upper() + word[1:] for word in routine.split('_'))}"
    yield f"[INFO] FlashInfer version: {versions['flashinfer']}"
    if verbose > 1:
        yield f"[VVERBOSE] gpu_name = {str(row.identity.device_name).replace(' ', '_')!r}"
    command = row.setup.repro_upstream or row.identity.repro
    yield f"[INFO] To reproduce this test case, run the following command: {command}"
    for name, label in (PREFILL if PREFILL.keys() <= row.facts.keys() else DECODE).items():
        if name in row.facts:
            yield f"[VERBOSE] Average actual {label}: {row.facts[name]}"
    for described in row.setup.inputs or ():
        yield f"[VVERBOSE] {described}"


def performance(row: Row) -> str:
    """The [PERF] line; without rates if the work is not known, as for solutions of data sets."""
    times = f"median time {1e3 * row.median:.3f} ms; std {1e3 * row.stats.stddev:.3f} ms"
    work = row.throughput
    rates = (("tflops", work.tflops, "TFLOPs/sec"), ("tb_per_sec", work.tb_per_sec, "TB/sec"))
    sentences = [f"achieved {name} {rate:.3f} {unit}" for name, rate, unit in rates if rate is not None]
    return f"[PERF] {row.identity.backend or row.case:<{WIDTH}}:: {'; '.join([times, *sentences])}"
