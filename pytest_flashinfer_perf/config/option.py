"""An option of a command line, declared once for all parsers that have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """Its name, and the keywords that argparse and pytest take for it."""

    name: str
    keywords: Mapping[str, Any]

    def add_by(self, add: Callable[..., object]) -> None:
        """`add` is argparse's `add_argument` or pytest's `addoption`."""
        add(self.name, **self.keywords)


def option(name: str, **keywords: Any) -> Option:
    return Option(name, keywords)
