"""Find the line of Python that leads to a call, outside of torch and of this package."""

from __future__ import annotations

import functools
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from pytest_flashinfer_perf.timing import tracebacks

TORCH = Path(torch.__file__).parent


class Place(NamedTuple):
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """With its file relative to site-packages or to the working directory."""
        _, installed, inside = self.file.rpartition("/site-packages/")
        path = Path(inside if installed else self.file)
        here = Path.cwd()
        shown = path.relative_to(here) if path.is_relative_to(here) else path
        return f"{shown}:{self.line} in {self.function}"


def leading_to(frame: FrameType | None) -> Place | None:
    while frame is not None:
        code = frame.f_code
        if is_callers(code.co_filename):
            return Place(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


@functools.cache
def is_callers(file: str) -> bool:
    return not (Path(file).is_relative_to(TORCH) or tracebacks.is_between(file))
