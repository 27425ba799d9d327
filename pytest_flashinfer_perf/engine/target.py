"""The target of a measurement: a function with its arguments and outputs, which can be moved to other addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.engine import copies
from pytest_flashinfer_perf.engine.cold import ColdSets
from pytest_flashinfer_perf.engine.instruments import Call


def _nothing(_args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    return ()


@dataclass(frozen=True)
class Target:
    """A function, its arguments, the tensors that it writes, and its name in profilers.

    `rebuilt` makes the same call with other memory, for functions that hold memory themselves; `plan` prepares it for a
    batch like this one; `changed` are the tensors among its arguments that it reads and writes; `obstacle` is why its
    arguments cannot be copied.
    """

    function: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()
    name: str = ""
    rebuilt: Callable[[], Target] | None = None
    plan: Call | None = None
    changed: Callable[[tuple[Any, ...]], tuple[Tensor, ...]] = _nothing
    obstacle: str = ""

    def bound(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Call:
        """The function with one set of arguments, for the instrument to call."""
        args, kwargs = arguments
        return lambda: self.function(*args, **kwargs)

    def at_new_addresses(self) -> Target:
        """The same call with arguments and outputs at other addresses, where they can be copied.

        Memory that the function holds stays.
        """
        if self.rebuilt is not None:
            return self.rebuilt()
        if self.obstacle:
            return self
        arguments = (self.args, dict(self.kwargs))
        of_function = copies.storages(self.outputs) - copies.storages(arguments)
        args, kwargs, outputs = copies.clone((*arguments, self.outputs), of_function)
        return replace(self, args=args, kwargs=kwargs, outputs=outputs)

    def __call__(self) -> object:
        return self.function(*self.args, **self.kwargs)


# Restore arguments that a call changes, outside of the timed part.

# The first call behind a restoration takes longer than the next (3.7 us for 3.3, evidence/parity-h200-0.6.18.md).
MOST_PARTS, FEWEST_CALLS = 4, 8


@dataclass(frozen=True)
class Restoration:
    """Tensors that calls change, each with what it held before the first of them."""

    originals: tuple[tuple[Tensor, Tensor], ...]
    sets: int

    def __call__(self) -> None:
        for changed, before in self.originals:
            changed.copy_(before)

    def parts(self, calls: int) -> Iterator[int]:
        """Calls between two restorations: once round the argument sets, or more where that would be too often."""
        each = max(self.sets, -(-calls // MOST_PARTS), FEWEST_CALLS)
        yield from (min(each, calls - done) for done in range(0, calls, each))


def restoration_for(target: Target, sets: ColdSets) -> Restoration | None:
    """What puts back the arguments that the call changes, in each set; None if it changes none."""
    changed = [tensor for args, _ in sets.sets for tensor in target.changed(args)]
    return Restoration(tuple((tensor, tensor.clone()) for tensor in changed), len(sets.sets)) if changed else None
