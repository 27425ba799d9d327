"""The commands of `flashinfer-perf` that run no pytest, each imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

HELP = {
    "report": "one HTML page, or Markdown, of what runs measured",
    "doctor": "what this machine can measure, and why not the rest",
    "list": "routines with their backends, tiers, models and flags",
}


def main(name: str, arguments: Sequence[str]) -> int:
    return int(importlib.import_module(f"{__name__}.{name}").main(arguments))
