"""Every option and command, from their declarations: python tools/options_page.py > docs/options.md"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from pytest_flashinfer_perf import cli, loading
from pytest_flashinfer_perf.cli.commands import all_commands
from pytest_flashinfer_perf.plugin import options

INTRODUCTION = """# Options, commands, markers

```sh
flashinfer-perf options     # those of pytest; each command has its own, with an example: flashinfer-perf COMMAND --help
```

[Options by task](README.md#options-by-task). This page is written by `tools/options_page.py` from the declarations.
"""


Setting = tuple[Sequence[str], Mapping[str, Any]]


class IniSettings:
    """Takes what extensions declare to pytest's parser of its ini file, which keeps such a list to itself."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []

    def addini(self, name: str, text: str, **_: Any) -> None:
        self.settings.append(((name,), {"help": text}))


def ini_settings() -> Sequence[Setting]:
    parser = IniSettings()
    loading.manager().hook.pytest_addoption.call_historic(kwargs={"parser": parser, "pluginmanager": None})
    return parser.settings


def spelled(names: Sequence[str], attributes: Mapping[str, Any]) -> str:
    """The option with what it takes, as `--help` shows it."""
    metavar = attributes.get("metavar") or "|".join(map(str, attributes.get("choices", ())))
    value = f"={metavar}" if metavar else ""
    return ", ".join(f"`{name}{value}`" for name in names)


def section(title: str, settings: Iterable[tuple[str, str]]) -> Iterator[str]:
    yield f"\n## {title}\n"
    yield from (f"* {name}: {text}" for name, text in settings)


def commands() -> dict[str, str]:
    """Each command with its line of `flashinfer-perf --help`."""
    shown = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="400")
    with wide, contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        cli.main(["--help"])
    lines = dict(re.findall(r"^ {2}([\w-]+)\s+(\S.*)$", shown.getvalue(), re.MULTILINE))
    return {name: lines[name] for name in (*cli.OF_PYTEST, *all_commands())}


def lines() -> Iterator[str]:
    yield INTRODUCTION.rstrip()
    for question, declared in options.by_question(loading.manager()).items():
        explained = [(spelled((one.name,), one.keywords), one.keywords["help"] % one.keywords) for one in declared]
        yield from section(f"pytest: {question}", explained)
    yield from section("pytest's ini file", [(f"`{names[0]}`", keywords["help"]) for names, keywords in ini_settings()])
    yield from section("flashinfer-perf", [(f"`{name}`", text) for name, text in commands().items()])
    every_marker = (*options.MARKERS, *loading.markers(loading.manager()))
    split = [marker.partition(": ") for marker in every_marker]
    yield from section("Markers", [(f"`{name}`", text) for name, _, text in split])


if __name__ == "__main__":
    print("\n".join(lines()))
