"""What is timed: a function, what it is given, what it writes, and how to have all of it at other addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.timing import cold
from pytest_flashinfer_perf.timing.instruments import Call


@dataclass(frozen=True)
class Target:
    """A function, its arguments, those of their tensors that it writes, and what a profiler shows it as.

    `rebuilt` makes the same call on memory of its own, where the function holds some itself; `plan` prepares it for a
    batch like this one.
    """

    function: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()
    name: str = ""
    rebuilt: Callable[[], Target] | None = None
    plan: Call | None = None

    def bound(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Call:
        """The function with one set of arguments, for the instrument to call."""
        args, kwargs = arguments
        return lambda: self.function(*args, **kwargs)

    def elsewhere(self) -> Target:
        """The same call, with all that it touches at other addresses; what its function holds itself stays."""
        if self.rebuilt is not None:
            return self.rebuilt()
        given = (self.args, dict(self.kwargs))
        held = cold.storages(self.outputs) - cold.storages(given)
        args, kwargs, outputs = cold.clone((*given, self.outputs), held)
        return replace(self, args=args, kwargs=kwargs, outputs=outputs)

    def __call__(self) -> object:
        return self.function(*self.args, **self.kwargs)
