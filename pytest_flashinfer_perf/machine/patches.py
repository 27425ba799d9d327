"""The functions of FlashInfer and CUPTI that this package replaces in a process that measures.

Neither library has a hook for what is needed here. Each function below names what it replaces, the versions that have
it, and what happens with one that has not. What is put in its place belongs to the caller. Replaced elsewhere: how
pytest-benchmark writes files (`plugin/results.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Function = Callable[..., Any]


def wrap_builds(wrapped: Callable[[Function], Function]) -> None:
    """Wrap FlashInfer's `JitSpec.build_and_load`, which compiles a module when somebody first asks for it.

    It stays wrapped until the process ends, since any later call may compile. FlashInfer 0.6.18 and 0.7.2 have it.
    Without it nothing is wrapped: compiling counts as the case's time, and each case compiles a broken module again.
    """
    spec = getattr(sys.modules.get("flashinfer.jit.core"), "JitSpec", None)
    build = getattr(spec, "build_and_load", None)
    if spec is not None and build is not None and not hasattr(build, "__wrapped__"):
        spec.build_and_load = wrapped(build)


def tuner_wrapped(method: str, wrapped: Callable[[Function], Function]) -> AbstractContextManager[None]:
    """Wrap a method of FlashInfer's `AutoTuner`: `choose_one`, which a call asks, or `search_cache`, which that asks.

    Only the one tuner of the process is changed, not its class. FlashInfer 0.6.18 and 0.7.2 have it. Without it a case
    that is tuned ends with an AttributeError: its row could not say which kernel was timed.
    """
    from flashinfer.autotuner import AutoTuner

    return wrapped_of(AutoTuner.get(), method, wrapped)


@contextmanager
def wrapped_of(owner: Any, method: str, wrapped: Callable[[Function], Function]) -> Iterator[None]:
    """Wrap a function of this object alone, not of its class; afterwards it has what it had of its own."""
    own = vars(owner).get(method)
    setattr(owner, method, wrapped(getattr(owner, method)))
    try:
        yield
    finally:
        delattr(owner, method) if own is None else setattr(owner, method, own)


def tuner_choices(on_choice: Callable[[str, Any, Any], None]) -> AbstractContextManager[None]:
    """Pass on each runner and tactic that the tuner answers with, and the operation that asked."""

    def wrapped(ask: Function) -> Function:
        def choose_one(custom_op: str, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
            runner, tactic = ask(custom_op, *args, **kwargs)
            on_choice(custom_op, runner, tactic)
            return runner, tactic

        return choose_one

    return tuner_wrapped("choose_one", wrapped)


def cupti_records(converted: Callable[[Any], Any], buffer_bytes: int) -> AbstractContextManager[None]:
    """Convert the records before the callbacks get them that `cupti.activity_register_callbacks` registers meanwhile.

    FlashInfer registers them itself, through this name of cupti-python 13, with buffers of 8 MiB, of which ten calls
    fill 30 KB. Where it did so through another one, it would get CUPTI's own records: slower to read, with the same
    times.
    """
    from cupti import cupti

    def wrapped(register: Function) -> Function:
        return lambda _requested, completed: register(
            lambda: (buffer_bytes, 0), lambda records: completed(converted(records))
        )

    return wrapped_of(cupti, "activity_register_callbacks", wrapped)
