"""What Python runs first in each process of a recorded program, because this folder leads PYTHONPATH.

It waits for FlashInfer, and runs the `sitecustomize` that this one hides. Whatever fails here, the program runs. It is
before all others that want to know of the process' end, or take one of the functions by which it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False  # typing would be imported by every process
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - pathlib would be imported by every process
HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(HERE))))  # noqa: PTH120
PACKAGE = "pytest_flashinfer_perf"
leaving: list[Callable[..., None]] = []
MODULES = ("flashinfer.api_logging", "flashinfer.decode")


class Finder:
    """Finds FlashInfer's modules as others do, and hooks them once they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in MODULES:
            return None
        others = (one for one in sys.meta_path if one is not self)
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            with contextlib.suppress(Exception):
                hooked(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def hooked(module: Any) -> None:
    """Import the recorder, of the package that this file is of, wherever that is installed."""
    if PACKAGE not in sys.modules:
        spec = importlib.machinery.PathFinder.find_spec(PACKAGE, [HOME])
        if spec is not None and spec.loader is not None:
            sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[PACKAGE])
    importlib.import_module(f"{PACKAGE}.extensions.traffic.hooks").hook_module(module, leaving)


def run_hidden() -> None:
    others = [path for path in sys.path if os.path.realpath(path) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        hidden = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = hidden
        spec.loader.exec_module(hidden)


def leave() -> None:
    for one in leaving:
        with contextlib.suppress(Exception):
            one()


def hook_end(name: str) -> None:
    own = getattr(os, name)

    @functools.wraps(own)
    def called(*args: Any, **kwargs: Any) -> Any:
        leave()
        return own(*args, **kwargs)

    setattr(os, name, called)
    if own in os.supports_fd:
        os.supports_fd.add(called)


atexit.register(leave)
for function in ("_exit", "execv", "execve"):  # of forked workers, and which all others call
    hook_end(function)
sys.meta_path.insert(0, Finder())
run_hidden()
