"""An option of a command line, declared once for all parsers that have it, and defaults that its help names.

Every session of pytest imports this module, whether it has a case or not: it imports no other of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEFAULT_SEED = 42
FINDINGS = Path(".hypothesis", "perf-findings")
GPU_WORKERS = "perf_gpu_workers"  # in an ini file


@dataclass(frozen=True)
class Option:
    """Its name, and the keywords that argparse and pytest take for it."""

    name: str
    keywords: Mapping[str, Any]

    @property
    def default(self) -> Any:
        return self.keywords.get("default", False if self.keywords.get("action") == "store_true" else None)

    @property
    def dest(self) -> str:
        """The attribute of pytest's options that has its value."""
        return self.name.removeprefix("--").replace("-", "_")

    def add_by(self, add: Callable[..., object]) -> None:
        """`add` is argparse's `add_argument` or pytest's `addoption`."""
        add(self.name, **self.keywords)


def option(name: str, **keywords: Any) -> Option:
    return Option(name, keywords)
