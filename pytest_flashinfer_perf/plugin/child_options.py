"""Options in a process that a session starts with its own command line and ini file: to compile, or to confirm."""

from __future__ import annotations

import os

import pytest

from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.session.stash import COMPILES
from pytest_flashinfer_perf.settings.option import Child

# Files of others' options, which a process that measures nothing does not write, and how each says that there is none.
OF_OTHERS = {"benchmark_json": None, "benchmark_save": None, "benchmark_autosave": False, "xmlpath": None}


def clear(config: pytest.Config) -> None:
    """Drop those that are the session's alone, wherever they come from."""
    compiles = COMPILES in os.environ
    for one in options.of_all(config):
        if one.child is Child.NONE or (one.child is Child.PART and not compiles):
            setattr(config.option, one.dest, one.default)
    for dest, nothing in OF_OTHERS.items() if compiles else ():
        if hasattr(config.option, dest):
            setattr(config.option, dest, nothing)
