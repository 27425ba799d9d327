"""Read a file of `flashinfer_benchmark.py` lines: the cases of each line, or why it has none."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_flashinfer_perf.api import SETTINGS, lines

STARTS = re.compile(r"\s*(--routine|-R|--api)\b")


def is_testlist(path: Path) -> bool:
    """Whether any line names a routine; other text files are not testlists."""
    return any(map(STARTS.match, _lines(path)))


def read(path: Path, flags_of_all: str = "", backends: Sequence[str] = ()) -> list[lines.Entry]:
    """An entry for each line and backend, or for each of `backends`; one for each line without a case.

    Equal entries are numbered.
    """
    entries: list[lines.Entry] = []
    for number, line in enumerate(_lines(path), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            entries += lines.read(f"{flags_of_all} {line}".strip(), f"{path.name}:{number}", backends)
    return list(lines.numbered(entries))


def _lines(path: Path) -> list[str]:
    """The encoding is known by the byte order mark: Windows' editors write one, and its shell writes UTF-16."""
    content = path.read_bytes()
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return content.decode(encoding, errors="replace").splitlines()


class Testlist(pytest.File):
    def collect(self) -> list[pytest.Function]:
        from pytest_flashinfer_perf.api import test_of

        entries = read(self.path, self.config.getoption("perf_flags"), self.config.stash[SETTINGS].backends)
        if not entries:
            raise self.CollectError(f"{self.path}: has no case: write a line such as --routine NAME with its flags")
        return [test_of(self, entry) for entry in entries]
