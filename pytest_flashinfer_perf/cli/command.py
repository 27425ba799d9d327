"""What a command of `flashinfer-perf` is: declared with its name and help, and imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """`main` names its function, which takes the arguments and returns the exit code: "package.module:function"."""

    name: str
    help: str
    main: str

    def load(self) -> Callable[[Sequence[str]], int]:
        module, _, function = self.main.partition(":")
        found: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return found

    def __call__(self, arguments: Sequence[str]) -> int:
        return self.load()(arguments)
