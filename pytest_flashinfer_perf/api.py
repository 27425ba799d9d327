"""All that an extension, a conftest or a script imports of the core: sixty names, and the spec of routines beside them.

The first part is what somebody's own extension is written with: docs/extend.md and examples/extension show each use.
The second part are modules of the core, for extensions that do more; what has no underscore in them is meant. Each is
imported when it is first used: an extension may import this module in any session of pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf import errors, loading, printing
    from pytest_flashinfer_perf import files as file_io
    from pytest_flashinfer_perf.checking import check
    from pytest_flashinfer_perf.cli import commands
    from pytest_flashinfer_perf.engine import cupti, instruments, observers, one_case, timing
    from pytest_flashinfer_perf.engine.measure import Measurement
    from pytest_flashinfer_perf.engine.target import Target
    from pytest_flashinfer_perf.errors import FlashinferPerfError
    from pytest_flashinfer_perf.gate import effects, match, series, thresholds, verdict, words
    from pytest_flashinfer_perf.gate.judge import judge
    from pytest_flashinfer_perf.gate.quantity import OtherTime, Quantity
    from pytest_flashinfer_perf.gate.thresholds import share
    from pytest_flashinfer_perf.machine import builds, capability, devices, garbage, load, provenance, requirements
    from pytest_flashinfer_perf.machine.devices import Device
    from pytest_flashinfer_perf.plugin import cases, lines
    from pytest_flashinfer_perf.plugin.fixture import CaseRun, Perf
    from pytest_flashinfer_perf.plugin.items import of_entry as test_of
    from pytest_flashinfer_perf.plugin.results import BOARD
    from pytest_flashinfer_perf.rows import fields, formatting, run_file, scatter
    from pytest_flashinfer_perf.rows.row import Row
    from pytest_flashinfer_perf.rows.run_file import Run
    from pytest_flashinfer_perf.session import processes, reports, setup, stash, time_limit
    from pytest_flashinfer_perf.session.stash import SETTINGS
    from pytest_flashinfer_perf.settings import option as options
    from pytest_flashinfer_perf.settings import usage
    from pytest_flashinfer_perf.settings.option import Bound, Child, Command, Option, option
    from pytest_flashinfer_perf.settings.settings import Checking, Measuring, Settings

__all__ = [
    "BOARD",
    "SETTINGS",
    "Bound",
    "CaseRun",
    "Checking",
    "Child",
    "Command",
    "Device",
    "FlashinferPerfError",
    "Measurement",
    "Measuring",
    "Option",
    "OtherTime",
    "Perf",
    "Quantity",
    "Row",
    "Run",
    "Settings",
    "Target",
    "builds",
    "capability",
    "cases",
    "check",
    "commands",
    "cupti",
    "devices",
    "effects",
    "errors",
    "fields",
    "file_io",
    "formatting",
    "garbage",
    "instruments",
    "judge",
    "lines",
    "load",
    "loading",
    "match",
    "observers",
    "one_case",
    "option",
    "options",
    "printing",
    "processes",
    "provenance",
    "reports",
    "requirements",
    "run_file",
    "scatter",
    "series",
    "setup",
    "share",
    "stash",
    "test_of",
    "thresholds",
    "time_limit",
    "timing",
    "usage",
    "verdict",
    "words",
]

# Where each is: its module, and its name there.
_NAMES = {
    # What an extension declares.
    "Option": ("settings.option", "Option"),
    "option": ("settings.option", "option"),
    "Bound": ("settings.option", "Bound"),
    "Child": ("settings.option", "Child"),
    "Command": ("settings.option", "Command"),
    # A line of flags, and the test of its case.
    "test_of": ("plugin.items", "of_entry"),
    # A call that is measured, and what is seen of it.
    "Measuring": ("settings.settings", "Measuring"),
    "Checking": ("settings.settings", "Checking"),
    "Measurement": ("engine.measure", "Measurement"),
    "Target": ("engine.target", "Target"),
    "Device": ("machine.devices", "Device"),
    # What was measured.
    "Row": ("rows.row", "Row"),
    "Run": ("rows.run_file", "Run"),
    # What the gate judges beside the time of kernels.
    "Quantity": ("gate.quantity", "Quantity"),
    "OtherTime": ("gate.quantity", "OtherTime"),
    "share": ("gate.thresholds", "share"),
    "judge": ("gate.judge", "judge"),
    # A session.
    "Perf": ("plugin.fixture", "Perf"),
    "CaseRun": ("plugin.fixture", "CaseRun"),
    "Settings": ("settings.settings", "Settings"),
    "SETTINGS": ("session.stash", "SETTINGS"),
    "BOARD": ("plugin.results", "BOARD"),
    "FlashinferPerfError": ("errors", "FlashinferPerfError"),
}
_MODULES = {
    # To declare.
    "options": "settings.option",
    "commands": "cli.commands",
    "loading": "loading",
    # Text and files.
    "errors": "errors",
    "usage": "settings.usage",
    "file_io": "files",
    "fields": "rows.fields",
    "formatting": "rows.formatting",
    "printing": "printing",
    # Rows and verdicts.
    "run_file": "rows.run_file",
    "scatter": "rows.scatter",
    "effects": "gate.effects",
    "match": "gate.match",
    "series": "gate.series",
    "thresholds": "gate.thresholds",
    "verdict": "gate.verdict",
    "words": "gate.words",
    # Calls.
    "one_case": "engine.one_case",
    "timing": "engine.timing",
    "observers": "engine.observers",
    "instruments": "engine.instruments",
    "cupti": "engine.cupti",
    "check": "checking.check",
    # The machine and its processes.
    "devices": "machine.devices",
    "capability": "machine.capability",
    "builds": "machine.builds",
    "provenance": "machine.provenance",
    "requirements": "machine.requirements",
    "garbage": "machine.garbage",
    "load": "machine.load",
    "processes": "session.processes",
    "time_limit": "session.time_limit",
    # A session.
    "stash": "session.stash",
    "reports": "session.reports",
    "setup": "session.setup",
    "cases": "plugin.cases",
    "lines": "plugin.lines",
}


def __getattr__(name: str) -> Any:
    import importlib

    package = __name__.rpartition(".")[0]
    if name in _MODULES:
        return importlib.import_module(f"{package}.{_MODULES[name]}")
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: it has {', '.join(__all__)}")
    module, there = _NAMES[name]
    return getattr(importlib.import_module(f"{package}.{module}"), there)
