"""What the installed FlashInfer says of an API elsewhere than in its decorators: annotations, docstrings, headers."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import typing
from pathlib import Path

from pytest_flashinfer_perf.machine.capability import api


def listed(name: str, backend_name: str) -> bool:
    """Whether the annotation of the API's parameter `backend` has this name."""
    annotation = inspect.signature(api(name)).parameters["backend"].annotation  # type: ignore[arg-type] # it is there
    return backend_name in typing.get_args(annotation)


def documented(name: str, words: str) -> bool:
    """Whether the API's docstring contains these words, for facts that nothing else declares."""
    return words in " ".join((inspect.getdoc(api(name)) or "").split())


@functools.cache
def dispatched(macro: str, variable: str) -> frozenset[int]:
    """The values that a dispatch macro of the installed headers has kernels for; empty if it is not found."""
    header = Path(importlib.import_module("flashinfer").__file__ or "").parent / "data/include/flashinfer/utils.cuh"
    body = header.read_text().partition(f"define {macro}(")[2].partition("Unsupported")[0] if header.exists() else ""
    return frozenset(map(int, re.findall(rf"\({variable} == (\d+)\)", body)))
