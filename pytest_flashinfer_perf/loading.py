"""Find the extensions and load them, where a session or a command asks for more than plain tests.

They are the folders of `extensions/` and what other packages name by an entry point. Nothing else knows where they are:
without that folder the rest works as it does with it. Every session of pytest imports this module.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import pytest

from pytest_flashinfer_perf import hookspecs

if TYPE_CHECKING:
    from pytest_flashinfer_perf.settings.option import Option

T = TypeVar("T")
ENTRY_POINTS = "flashinfer_perf"  # the group in which other packages name theirs
FOLDER = "pytest_flashinfer_perf.extensions"
PREFIX = "flashinfer-perf-extension-"  # of their names as plugins
DATA = ("*/*.json", "*/*/*.json")  # in a folder that an extension may collect, though it has Python as well
HELPING = ("-h", "--help", "--markers", "--strict", "--strict-markers")  # all of these want to know what there is
LOADED = "flashinfer-perf-extensions"
OURS = "perf"  # in an option, or in the source of a test


class Loaded:
    """Says among the plugins of a session that all extensions are there."""


def modules() -> Iterator[tuple[str, ModuleType]]:
    """Each extension by its name; other packages' come last."""
    from importlib import metadata, util

    if util.find_spec(FOLDER) is not None:
        for one in pkgutil.iter_modules(importlib.import_module(FOLDER).__path__):
            yield one.name, importlib.import_module(f"{FOLDER}.{one.name}")
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        yield entry.name, entry.load()


def register(manager: pytest.PytestPluginManager) -> None:
    """Load them all, once. pytest's hooks of a plugin that joins late begin with the next one."""
    from pytest_flashinfer_perf.rows import parts

    if not is_done(manager):
        manager.register(Loaded(), LOADED)
        for name, module in modules():
            if not manager.is_blocked(f"{PREFIX}{name}"):
                manager.register(module, f"{PREFIX}{name}")
        parts.declare(reversed(manager.hook.pytest_perf_row_parts()))


def is_done(manager: pytest.PytestPluginManager) -> bool:
    return bool(manager.hasplugin(LOADED))


@functools.cache
def manager() -> pytest.PytestPluginManager:
    """A plugin manager with all extensions, for a command, which has no session of pytest."""
    own = pytest.PytestPluginManager()
    own.add_hookspecs(hookspecs)
    own.hook.pytest_addhooks.call_historic(kwargs={"pluginmanager": own})  # for hooks that an extension has
    register(own)
    return own


def options(manager: pytest.PytestPluginManager) -> dict[str, list[Option]]:
    """The options of all extensions, by the question that they answer."""
    by_question: dict[str, list[Option]] = {}
    for of_one in reversed(manager.hook.pytest_perf_options()):
        for question, declared in of_one.items():
            by_question.setdefault(question, []).extend(declared)
    return by_question


def markers(manager: pytest.PytestPluginManager) -> list[str]:
    return list(joined(manager.hook.pytest_perf_markers()))


def joined(answers: Sequence[Iterable[T]]) -> Iterator[T]:
    """Join the answers of all extensions to a hook, in their order; pytest has the last one's first."""
    return (one for of_one in reversed(answers) for one in of_one)


# Whether a session asks for them.


def are_needed(config: pytest.Config) -> bool:
    """Whether its command line, which workers of xdist have too, or its settings speak of us or want an explanation."""
    words = [*config.invocation_params.args, *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *_of_ini(config)]
    return any(OURS in word or word in HELPING for word in map(str, words)) or any(map(_may_be_data, words))


def _of_ini(config: pytest.Config) -> list[str]:
    """The options in its file, and those settings of it that are ours: who declares them is not loaded yet."""
    try:
        options = list(config.getini("addopts"))
    except (KeyError, ValueError):  # a plugin that is loaded before pytest has read its file
        return ["--perf"]
    text = config.inipath.read_text(encoding="utf-8", errors="replace") if config.inipath else ""
    return options + re.findall(r"^\s*(perf_\w+)\s*=", text, re.MULTILINE)


def _may_be_data(word: object) -> bool:
    """Whether an argument names a file that is no Python, or a folder with data or without Python: an extension's?"""
    path = Path(str(word).partition("::")[0])
    if str(word).startswith("-") or not path.exists():
        return False
    if path.is_file():
        return path.suffix != ".py"
    return not any(path.glob("*.py")) or any(any(path.glob(data)) for data in DATA)


def speaks_of_us(test_file: Path) -> bool:
    """Whether a test file can have a fixture or a marker of this plugin."""
    try:
        return OURS.encode() in test_file.read_bytes()
    except OSError:
        return False


def join_late(config: pytest.Config) -> None:
    """Load the extensions in a session whose command line has none of their options: each has its default."""
    if is_done(config.pluginmanager):
        return
    for marker in markers(manager()):
        config.addinivalue_line("markers", marker)
    for declared in options(manager()).values():
        for option in declared:
            setattr(config.option, option.dest, option.fresh_default)
    register(config.pluginmanager)
